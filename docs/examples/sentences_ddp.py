"""Train on sentences of unequal length with DistributedDataParallel, and go on where a state is found.

Arguments: epochs, the file of the state, workers of the loader.
"""

import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from hpcbal.samplers import BalancedBatchSampler


class Sentences(torch.utils.data.Dataset):
    """Which of four words is the most frequent? Longer sentences have more words."""

    def __init__(self, num_samples: int = 200) -> None:
        random = torch.Generator().manual_seed(1)
        self.lengths = torch.randint(5, 60, (num_samples,), generator=random).tolist()
        self.words = [torch.randint(4, (length,), generator=random) for length in self.lengths]

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        words = torch.nn.functional.one_hot(self.words[index], 4).double()
        return words, words.sum(0).argmax()


def padded(samples):
    words, labels = zip(*samples, strict=True)
    return torch.nn.utils.rnn.pad_sequence(words, batch_first=True), torch.stack(labels)


def main(epochs: int, state: str, num_workers: int) -> None:
    dist.init_process_group("gloo")
    dataset = Sentences()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4)).double()
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)

    sampler = BalancedBatchSampler(dataset.lengths, batch_size=24, speeds="measured", exchange_every=4)
    sampler.watch(ddp)
    loader = sampler.loader(dataset, collate_fn=padded, num_workers=num_workers)
    if os.path.exists(state):
        saved = torch.load(state)
        model.load_state_dict(saved["model"])
        sampler.load_state_dict(saved["sampler"])

    for _ in range(epochs):
        for words, labels in loader:
            is_word = words.sum(2, keepdim=True)  # padding must not count
            outputs = (ddp(words) * is_word).sum(1) / is_word.sum(1)
            loss = torch.nn.functional.cross_entropy(outputs, labels)  # the mean over the own part
            sampler.scale(loss).backward()
            optimizer.step()
            optimizer.zero_grad()
    if dist.get_rank() == 0:
        torch.save({"model": model.state_dict(), "sampler": sampler.state_dict()}, state)
        print(f"{dist.get_world_size()} ranks, speeds {sampler.speeds}, last loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
