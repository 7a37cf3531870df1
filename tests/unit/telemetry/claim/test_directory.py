"""A run and its directory belong together."""

import os
import tempfile

import pytest
from ledger_lines import a

from hpcbal.errors import ExitCode, OutputError
from hpcbal.events.ensemble import StartGroup, StartRound
from hpcbal.kinds import KINDS
from hpcbal.telemetry.claim.directory import check_output, claim_output
from hpcbal.telemetry.claim.run_lock import RunLock
from hpcbal.telemetry.claim.same_config import is_same_config
from hpcbal.telemetry.ledger.file import Ledger

CONFIG = """
schema: 1
kind: ensemble
seed: 0
data: {dataset: "hpcbal.data:digits", args: {}}
dnns:
- {name: a, batch_size: 32, stop: {patience: null, max_epochs: 10}}
- {name: b, batch_size: 64, stop: {patience: 3, max_epochs: 10}}
slots: {per_node: auto}
checkpoint: {interval_s: 60.0}
output: {dir: runs/x}
walltime: null
balance: {policy: even, samples: within-batch, gradient_weights: samples}
stall_timeout_s: 600
dataplane: {ring_bytes: 1024}
backend: {rates: {}}
"""


def prepare_output(root, config, **options):
    """Claim the directory like a start that nothing refuses; returns whether it resumes."""
    claim = check_output(root, config, **options)
    claim.record()
    return claim.resumed


def train(root, start=StartRound):
    """A round was started, or a DNN alone: from now on the config counts."""
    with Ledger(root / "ledger.jsonl") as ledger:
        ledger.append(a(start))


def test_while_nothing_is_trained_the_config_may_be_mended(tmp_path):
    prepare_output(tmp_path, CONFIG)
    mended = CONFIG.replace("args: {}", "args: {n: 3}")
    assert prepare_output(tmp_path, mended) is True
    assert (tmp_path / "config.yaml").read_text() == mended


def test_the_first_start_makes_the_directory_and_keeps_the_config(tmp_path):
    root = tmp_path / "deep" / "run"
    assert prepare_output(root, CONFIG) is False
    assert (root / "config.yaml").read_text() == CONFIG
    assert [path.name for path in root.iterdir()] == ["config.yaml"]


def test_the_same_config_resumes(tmp_path):
    prepare_output(tmp_path, CONFIG)
    assert prepare_output(tmp_path, CONFIG) is True
    assert prepare_output(tmp_path, CONFIG, resume_required=True) is True


NAN_ARGS = "args: {scale: .nan, deep: {widths: [1, .nan, {x: .nan}]}}"


def test_the_same_config_with_nan_in_args_resumes(tmp_path):
    config = CONFIG.replace("args: {}", NAN_ARGS)
    prepare_output(tmp_path, config)
    train(tmp_path)
    assert prepare_output(tmp_path, config) is True


@pytest.mark.parametrize(
    ("before", "after", "reported"),
    [
        ("scale: .nan", "scale: 1.0", "  data.args.scale: was .nan, is 1.0"),
        ("{x: .nan}", "{x: .inf}", "  data.args.deep.widths.2.x: was .nan, is .inf\n"),
        ("[1, .nan", "[true, .nan", "  data.args.deep.widths.0: was 1, is true\n"),
        ("[1, .nan, ", "[1, ", "  data.args.deep.widths.1: was .nan, is absent\n"),
    ],
)
def test_a_config_with_nan_that_differs_is_refused(tmp_path, before, after, reported):
    config = CONFIG.replace("args: {}", NAN_ARGS)
    prepare_output(tmp_path, config)
    train(tmp_path)
    changed = config.replace(before, after)
    assert changed != config
    with pytest.raises(OutputError) as caught:
        prepare_output(tmp_path, changed)
    assert reported in str(caught.value)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("walltime: null", "walltime: 3600"),
        ("per_node: auto", "per_node: 4"),
        ("interval_s: 60.0", "interval_s: 5"),
        ("dir: runs/x", "dir: elsewhere"),
        ("ring_bytes: 1024", "ring_bytes: 2048"),
        ("ring_bytes: 1024", "ring_bytes: 1024, on_device: true"),
        ("patience: 3, max_epochs: 10", "patience: 3, max_epochs: 20"),
        ("policy: even", "policy: fitted, cost: sum"),
        ("rates: {}", "rates: {a: {1: 5.0}}"),
        ("seed: 0", "seed: 0\nname: other"),
        ("name: a, batch_size: 32", "name: a, batch_size: 32, balance: even"),
        ("name: a, batch_size: 32", "name: a, batch_size: 32, balance: fixed, shares: [2, 1]"),
    ],
)
def test_what_may_change_is_taken_over(tmp_path, before, after):
    prepare_output(tmp_path, CONFIG)
    train(tmp_path)
    changed = CONFIG.replace(before, after)
    assert changed != CONFIG
    assert prepare_output(tmp_path, changed) is True
    assert (tmp_path / "config.yaml").read_text() == changed


@pytest.mark.parametrize(
    ("before", "after", "reported"),
    [
        ("seed: 0", "seed: 1", "  seed: was 0, is 1"),
        ("seed: 0", "seed: false", "  seed: was 0, is false"),
        ("batch_size: 64", "batch_size: 16", "  dnns.b.batch_size: was 64, is 16"),
        (
            "patience: 3, max_epochs: 10",
            "patience: 3, max_epochs: 9",
            "  dnns.b.stop.max_epochs: was 10, is 9",
        ),
        ("name: b,", "name: b, args: {balance: 1},", "  dnns.b.args: was absent, is {balance: 1}"),
        ("args: {}", "args: {n: 3}", "  data.args.n: was absent, is 3"),
        ("args: {}", "args: {n: '3'}", "  data.args.n: was absent, is '3'"),
        ("args: {}", 'args: {n: "a\\nb"}', "  data.args.n: was absent, is 'a b'"),
        (
            "gradient_weights: samples",
            "gradient_weights: size",
            "  balance.gradient_weights: was samples, is size",
        ),
        ("samples: within-batch", "samples: in-order", "  balance.samples: was within-batch, is"),
    ],
)
def test_another_config_is_refused_and_its_keys_named(tmp_path, before, after, reported):
    prepare_output(tmp_path, CONFIG)
    train(tmp_path)
    with pytest.raises(OutputError) as caught:
        prepare_output(tmp_path, CONFIG.replace(before, after))
    assert reported in str(caught.value)
    assert str(tmp_path) in str(caught.value)
    assert "--output" in str(caught.value)
    assert caught.value.exit_code == ExitCode.WRONG_INPUT
    assert (tmp_path / "config.yaml").read_text() == CONFIG


CROP = "{random_crop: {height: 64, width: 64, padding: 4}}"
OPERATIONS = f"preprocessing: [{{decode: {{mode: rgb}}}}, {CROP}, {{normalize: {{mean: [0.5, 0.4]}}}}]\n"
LONG = "/scratch/projects/of/a/group/with/a/long/name/and/a/deep/tree/run-{}/data/images/of/all/kinds.h5"


@pytest.mark.parametrize(
    ("before", "after", "reported"),
    [
        ("padding: 4", "padding: 8", ["preprocessing.1.random_crop.padding: was 4, is 8"]),
        ("0.4]", "0.4, 0.3]", ["preprocessing.2.normalize.mean.2: was absent, is 0.3"]),
        (f"{CROP}, ", "", [f"preprocessing.1: was {CROP}, is absent"]),
        ("rgb}}, ", "rgb}}, {color: {}}, ", ["preprocessing.1: was absent, is {color: {}}"]),
        ("preprocessing: [{decode: {mode: rgb}}, ", "preprocessing: [", ["preprocessing.0: was {decode"]),
        (
            "random_crop",
            "center_crop",
            [
                "preprocessing.1.random_crop: was {height: 64, width: 64, padding: 4}, is absent",
                "preprocessing.1.center_crop: was absent, is {height: 64, width: 64, padding: 4}",
            ],
        ),
        ("run-1", "run-2", ["text: was ...and/a/deep/tree/run-1/data/", ", is ...and/a/deep/tree/run-2/"]),
        ("'a b'", "'a  b'", ["spaces: was 'a b', is 'a  b'"]),
    ],
)
def test_the_refusal_shows_what_differs_however_long_the_values_are(tmp_path, before, after, reported):
    config = f"{CONFIG}{OPERATIONS}text: {LONG.format(1)}\nspaces: 'a b'\n"
    prepare_output(tmp_path, config)
    train(tmp_path)
    assert config.count(before) == 1
    with pytest.raises(OutputError) as caught:
        prepare_output(tmp_path, config.replace(before, after))
    differing = [line for line in str(caught.value).splitlines() if ": was " in line]
    assert all(part in "\n".join(differing) for part in reported), differing
    assert len(differing) == max(1, sum(": was " in part for part in reported)), differing


def test_lists_that_may_change_are_named_as_a_whole(tmp_path):
    before = CONFIG.replace("args: {}", "args: {paths: [/a/x.h5, /a/y.h5]}")
    before = before.replace("name: a, ", "name: a, callbacks: [{'m:f': {n: 1}}], ")
    prepare_output(tmp_path, before)
    train(tmp_path)
    claim = check_output(tmp_path, before.replace("n: 1", "n: 2").replace("/a/y", "/b/y"))
    assert claim.moved == ("data.args.paths",)
    assert "with changed data.args.paths, dnns.a.callbacks" in claim.notes[0]


def test_a_dnn_that_trains_alone_holds_the_config_too(tmp_path):
    prepare_output(tmp_path, CONFIG)
    train(tmp_path, StartGroup)
    with pytest.raises(OutputError, match="--output"):
        prepare_output(tmp_path, CONFIG.replace("args: {}", "args: {n: 3}"))


LINE_OF_B = "- {name: b, batch_size: 64, stop: {patience: 3, max_epochs: 10}}\n"
WITHOUT_B = CONFIG.replace(LINE_OF_B, "")
WITH_C = CONFIG.replace(LINE_OF_B, LINE_OF_B + "- {name: c, batch_size: 8, stop: {max_epochs: 1}}\n")


def test_the_refusal_lists_what_may_change(tmp_path):
    prepare_output(tmp_path, CONFIG)
    train(tmp_path)
    with pytest.raises(OutputError) as caught:
        prepare_output(tmp_path, CONFIG.replace("seed: 0", "seed: 1"))
    rule = KINDS["ensemble"].file.may_change
    last = str(caught.value).splitlines()[-1]
    assert all(key in last for key in (*rule.keys, *rule.of_job, rule.may_grow, "walltime", "name"))
    assert last.endswith(
        "DNNs may be added and removed; to train a DNN with other settings, add it under another name."
    )


def test_jobs_may_be_added_and_removed(tmp_path):
    prepare_output(tmp_path, CONFIG)
    train(tmp_path)
    changed = WITH_C.replace(LINE_OF_B, "").replace("walltime: null", "walltime: 60")
    claim = check_output(tmp_path, changed)
    assert claim.resumed
    assert claim.notes == ("resuming with c added; without b, whose files stay; with changed walltime",)


def test_a_change_is_recorded_once_the_run_has_accepted_it(tmp_path):
    prepare_output(tmp_path, CONFIG)
    train(tmp_path)
    longer = CONFIG.replace("patience: 3, max_epochs: 10", "patience: 3, max_epochs: 20")
    refused = check_output(tmp_path, WITHOUT_B)
    assert (tmp_path / "config.yaml").read_text() == CONFIG
    assert [path.name for path in tmp_path.iterdir() if "removed" in path.name] == []
    assert "without b, whose files stay" in refused.notes[0]
    claim = check_output(tmp_path, longer)
    assert claim.notes == (
        "resuming with changed dnns.b.stop.max_epochs; from now on stop.max_epochs cannot be lowered again",
    )
    assert check_output(tmp_path, CONFIG).notes == ()
    claim.record()
    with pytest.raises(OutputError, match=r"dnns\.b\.stop\.max_epochs: was 20, is 10"):
        check_output(tmp_path, CONFIG)


def test_another_name_of_the_directory_is_not_worth_a_line(tmp_path):
    prepare_output(tmp_path, CONFIG)
    train(tmp_path)
    moved = CONFIG + "output: {dir: elsewhere}\n"
    claim = check_output(tmp_path, moved)
    assert (claim.resumed, claim.notes) == (True, ())
    claim.record()
    assert (tmp_path / "config.yaml").read_text() == moved


def test_paths_of_the_data_may_change_and_other_arguments_not(tmp_path):
    before = CONFIG.replace("args: {}", "args: {path: /scratch/1/x.h5, split: train}")
    prepare_output(tmp_path, before)
    train(tmp_path)
    moved = before.replace("/scratch/1/", "$SLURM_TMPDIR/")
    assert check_output(tmp_path, moved).moved == ("data.args.path",)
    with pytest.raises(OutputError, match=r"data\.args\.split: was train, is test"):
        check_output(tmp_path, moved.replace("train}", "test}"))


def test_a_job_that_is_back_must_be_as_it_was(tmp_path):
    prepare_output(tmp_path, CONFIG)
    train(tmp_path)
    assert prepare_output(tmp_path, WITHOUT_B)
    for change in ("batch_size: 16", "batch_size: 64, seed: 3"):
        with pytest.raises(OutputError, match=r"dnns\.b\.(batch_size|seed): was (64|absent), is"):
            prepare_output(tmp_path, CONFIG.replace("batch_size: 64", change))
    assert prepare_output(
        tmp_path, CONFIG.replace("patience: 3, max_epochs: 10", "patience: 3, max_epochs: 20")
    )


@pytest.mark.parametrize("removed", [False, True])
def test_a_name_that_differs_only_in_case_is_refused(tmp_path, removed):
    prepare_output(tmp_path, CONFIG)
    train(tmp_path)
    if removed:
        prepare_output(tmp_path, WITHOUT_B)
    with pytest.raises(OutputError, match=r"dnns: 'B' differs only in case from 'b', whose files are in"):
        prepare_output(tmp_path, CONFIG.replace("name: b", "name: B"))


def test_a_damaged_list_of_removed_jobs_is_reported(tmp_path):
    prepare_output(tmp_path, CONFIG)
    train(tmp_path)
    prepare_output(tmp_path, WITHOUT_B)
    for damage in (b"[", b"\xff", b"b: 3"):
        (tmp_path / "removed-dnns.yaml").write_bytes(damage)
        with pytest.raises(OutputError, match=r"removed-dnns\.yaml: damaged"):
            prepare_output(tmp_path, CONFIG)


def test_a_foreign_directory_is_refused_and_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(OutputError, match=r"not an output directory of hpcbal \(it holds thesis\.tex\)"):
        prepare_output(tmp_path, CONFIG)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_what_the_batch_system_left_there_does_not_matter(tmp_path):
    for name in ("slurm-1.out", "job.err", "run.lock", "12.pbs.OU", "net.o12", ".hpcbal-12.end"):
        (tmp_path / name).write_text("")
    assert prepare_output(tmp_path, CONFIG) is False


def test_resume_wants_a_run(tmp_path):
    with pytest.raises(OutputError, match="no run to resume"):
        prepare_output(tmp_path / "new", CONFIG, resume_required=True)
    assert not (tmp_path / "new").exists()


def test_a_damaged_config_is_reported(tmp_path):
    (tmp_path / "config.yaml").write_text("a: [")
    train(tmp_path)
    with pytest.raises(OutputError, match=r"config\.yaml: damaged"):
        prepare_output(tmp_path, CONFIG)


DAMAGED_CONFIGS = {
    b"seed: 0\nname: \xba\n": r"damaged \(no UTF-8 at byte 14\)",
    b"seed: 0\n\x00": r"damaged \(no YAML\)",
    b"seed: [0\nname: a\n": r"damaged \(no YAML in line 2\)",
    b"seed: 2000-77-77\n": r"damaged \(no YAML of hpcbal\)",
    b"[" * 5000: r"damaged \(no YAML of hpcbal\)",
    b"": r"damaged \(no keys\)",
    b"just text": r"damaged \(no keys\)",
}


@pytest.mark.parametrize("content", DAMAGED_CONFIGS, ids=lambda content: content[:12])
def test_a_damaged_config_of_a_trained_run_is_one_sentence_with_the_way_out(tmp_path, content):
    prepare_output(tmp_path, CONFIG)
    train(tmp_path)
    (tmp_path / "config.yaml").write_bytes(content)
    found = rf"config\.yaml: {DAMAGED_CONFIGS[content]}, so .*'hpcbal validate --resolved CONFIG > {tmp_path}"
    with pytest.raises(OutputError, match=found) as refused:
        prepare_output(tmp_path, CONFIG)
    assert "\n" not in str(refused.value)
    (tmp_path / "config.yaml").unlink()
    with pytest.raises(
        OutputError, match=r"config\.yaml: is missing, so .*'hpcbal validate --resolved CONFIG"
    ):
        claim_output(tmp_path, CONFIG)


def test_checkpoints_without_a_ledger_bind_the_config_too(tmp_path):
    prepare_output(tmp_path, CONFIG)
    (tmp_path / "dnns" / "a").mkdir(parents=True)
    (tmp_path / "dnns" / "a" / "checkpoint.h5").write_bytes(b"")
    with pytest.raises(OutputError, match="holds a run with another config"):
        prepare_output(tmp_path, CONFIG.replace("batch_size: 32", "batch_size: 48"))


def test_a_path_through_a_file_is_reported_in_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot use the output directory: Not a directory") as caught:
        prepare_output(tmp_path / "file" / "run", CONFIG)
    assert "\n" not in str(caught.value)


def test_a_file_in_place_of_the_folder_of_jobs_is_reported(tmp_path):
    prepare_output(tmp_path, CONFIG)
    (tmp_path / "dnns").write_text("")
    with pytest.raises(OutputError, match="dnns: is a file, but results go to a directory") as caught:
        prepare_output(tmp_path, CONFIG)
    assert caught.value.exit_code == ExitCode.WRONG_INPUT


def test_a_full_disk_is_reported_before_anything_starts(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda dir, suffix: open("/dev/full", "wb"))  # noqa: SIM115
    with pytest.raises(OutputError, match="No space left on device"):
        prepare_output(tmp_path, CONFIG)
    assert list(tmp_path.iterdir()) == []


def test_an_unwritable_directory_is_reported(tmp_path, monkeypatch):
    def refuse(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OutputError, match="Permission denied"):
        prepare_output(tmp_path, CONFIG)


def test_a_directory_is_claimed_with_its_lock(tmp_path):
    claim, lock = claim_output(tmp_path / "run", CONFIG)
    assert (claim.resumed, (tmp_path / "run/run.lock").exists()) == (False, True)
    lock.release()
    claim, lock = claim_output(tmp_path / "run", CONFIG)
    lock.release()
    assert claim.resumed


def test_the_config_of_a_living_run_is_not_touched(tmp_path):
    prepare_output(tmp_path, CONFIG)
    with RunLock(tmp_path, host="elsewhere", beat_s=0.05), pytest.raises(OutputError, match="another run"):
        claim_output(tmp_path, CONFIG.replace("walltime: null", "walltime: 3600"))
    assert (tmp_path / "config.yaml").read_text() == CONFIG


def test_a_refused_claim_gives_the_lock_back(tmp_path):
    prepare_output(tmp_path, CONFIG)
    train(tmp_path)
    with pytest.raises(OutputError, match="seed"):
        claim_output(tmp_path, CONFIG.replace("seed: 0", "seed: 1"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.yaml", "ledger.jsonl"]


def test_a_foreign_directory_gets_no_lock(tmp_path):
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(OutputError, match=r"thesis\.tex"):
        claim_output(tmp_path, CONFIG)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_run_of_another_kind_is_refused(tmp_path):
    prepare_output(tmp_path, CONFIG.replace("kind: ensemble", "kind: other"))
    train(tmp_path)
    with pytest.raises(OutputError, match="kind: was other, is ensemble"):
        prepare_output(tmp_path, CONFIG)


@pytest.mark.parametrize("before", ["", "3", "dnns: [", CONFIG.replace("seed: 0", "seed: 1")])
def test_another_config_or_a_damaged_one_is_not_the_same(before):
    assert not is_same_config(before, CONFIG)


def test_a_new_key_that_is_null_is_no_difference():
    newer = CONFIG.replace("name: a,", "name: a, k_fold: null,")
    assert is_same_config(CONFIG, newer)
    assert not is_same_config(newer, CONFIG)
    assert not is_same_config(CONFIG, newer.replace("k_fold: null", "k_fold: 2"))


def test_the_order_of_keys_is_no_difference():
    lines = CONFIG.strip().splitlines()
    assert is_same_config("\n".join([*lines[1:], lines[0]]), CONFIG)
    assert not is_same_config(CONFIG.replace("name: b", "name: c"), CONFIG)


def test_a_run_from_before_there_was_exact_decoding_resumes_with_it_alone(tmp_path):
    def config(decode):
        return f"kind: ensemble\ndnns: []\npreprocessing: [{{decode: {decode}}}, {{normalize: {{}}}}]\n"

    prepare_output(tmp_path, config("{mode: rgb}"))
    train(tmp_path)
    with pytest.raises(OutputError, match=r"preprocessing.0.decode.exact: was true, is false"):
        check_output(tmp_path, config("{mode: rgb, exact: false}"))
    with pytest.raises(OutputError, match=r"preprocessing.0.decode.mode: was rgb, is gray"):
        check_output(tmp_path, config("{mode: gray, exact: true}"))
    claim = check_output(tmp_path, config("{mode: rgb, exact: true}"))
    assert not claim.notes
    claim.record()
    assert "exact: true" in (tmp_path / "config.yaml").read_text()
