"""PyTorch members: build, train, evaluate and save `torch.nn.Module`s."""
