import shutil
from pathlib import Path
from typing import Any

import pytest

from resperf.campaign import Bench, Campaign, plan_campaign
from resperf.dataset import read_dataset
from resperf.errors import CampaignError
from resperf.targets import Target, target

TOML = """
samples = 12
seed = 1
repeat_share = 0.0
[kinds.dense]
batch = 1
features_in = { law = "uniform", low = 1, high = 300 }
features_out = 5
"""


@pytest.fixture
def campaign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "tiny.toml"
    path.write_text(TOML)
    return path


def test_bench_writes_a_dataset_and_says_what_comes_next(campaign: Path, cli) -> None:
    Path("datasets").mkdir()
    printed = cli.text("bench", campaign, "--framework", "synthetic")
    output = Path("datasets/tiny-synthetic-synthetic.h5")
    assert len(read_dataset(output).measurements) == 12
    assert f"{output}: 12 rows (12 ok)" in printed
    assert f"next: resperf train {output}" in printed


def test_a_campaign_without_a_time_says_why_and_what_to_do(
    campaign: Path, cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(target: Target, settings: dict[str, Any], *words: Any, **named: Any) -> Bench:
        return Bench(target, {**settings, "fail": {"memory": "features_out=5,"}}, *words, **named)

    monkeypatch.setattr("resperf.campaign.Bench", failing)
    words = ("bench", campaign, "--framework", "synthetic", "-o", "a.h5")
    lines = cli.text(*words).splitlines()
    assert lines[0] == "a.h5: 12 rows (12 out_of_memory)"
    assert lines[-2] == (
        "every row failed; the most frequent message: synthetic: out of memory on demand"
    )
    assert lines[-1].startswith("next: mend the cause, then start again with another file (-o)")
    assert cli.json(*words)["failure"] == "synthetic: out of memory on demand"


def test_bench_as_json(campaign: Path, cli) -> None:
    words = ["bench", str(campaign), "--framework", "synthetic", "-o", "a.h5"]
    values = cli.json(*words, "--samples", "5")
    assert (values["rows"], values["reason"], values["statuses"]) == (5, "complete", {"ok": 5})


def test_the_networks_of_a_folder_give_layers(campaign: Path, cli) -> None:
    shipped = Path(__file__).parents[2] / "models" / "networks"
    Path("mine").mkdir()
    shutil.copy(shipped / "lenet5.onnx", "mine")
    campaign.write_text(TOML + "[mixture]\nfrom_networks = 1.0\nexact = 1.0\n")
    words = ["bench", str(campaign), "--framework", "synthetic", "-o", "a.h5", "--samples", "3"]
    printed = cli.run(*words, "--networks", "mine").err
    measured = [row.layer.fields() for row in read_dataset(Path("a.h5")).measurements]
    assert {layer["features_in"] for layer in measured} == {400, 120, 84}
    # Layers of them that the campaign does not draw are named.
    assert "layers of the networks are of kinds that campaign tiny does not draw: " in printed
    assert "conv (2)" in printed
    campaign.write_text(TOML)
    assert "campaign tiny draws nothing from networks" in cli.error(*words, "--networks", "mine")
    Path("none").mkdir()
    assert "no ONNX file at none" in cli.error(*words, "--networks", "none")


def test_an_adaptive_campaign_chooses_some_of_its_layers(campaign: Path, cli) -> None:
    words = ["bench", str(campaign), "--framework", "synthetic", "--samples", "60"]
    cli.text(*words, "-o", "plain.h5")
    cli.text(*words, "-o", "a.h5", "--adaptive")
    plain, chosen = (
        {row.layer.key for row in read_dataset(Path(name)).measurements}
        for name in ("plain.h5", "a.h5")
    )
    assert len(plain) == len(chosen) == 60
    assert 15 <= len(plain & chosen) < 53
    assert "after the first 15 layers" in cli.text(*words, "--adaptive", "--dry-run")


def test_a_dry_run_measures_nothing(campaign: Path, cli) -> None:
    words = ["bench", str(campaign), "--framework", "synthetic", "--dry-run"]
    printed = cli.text(*words)
    assert "dense" in printed
    assert "12 layers" in printed
    assert "of disk" in printed
    values = cli.json(*words)
    assert values["layers"] == {"dense": 12}
    assert values["hours"] > 0
    assert list(Path().glob("**/*.h5")) == []


def test_a_dry_run_says_what_fits_the_time(campaign: Path, cli) -> None:
    words = ["bench", str(campaign), "--framework", "synthetic", "--dry-run", "--hours"]
    assert "1e-05 hours suffice for about the first 1 layers" in cli.text(*words, "1e-5")
    assert "about the first" not in cli.text(*words, "9")
    assert cli.json(*words, "1e-5")["layers_in_time"] == 1
    campaign.write_text(TOML + "[run]\nhours = 1e-5\n")
    printed = cli.text(*words[:-1])
    assert "each run stops after 1e-05 hours" in printed
    assert "about the first 1 layers" in printed
    assert cli.json(*words[:-1])["time_limit_hours"] == 1e-5
    assert "each run stops after 9 hours" in cli.text(*words, "9")


def test_layers_that_are_excluded_too_late_are_told(campaign: Path, cli) -> None:
    lenet = Path(__file__).parents[2] / "models" / "networks" / "lenet5.onnx"
    campaign.write_text(TOML + '[mixture]\nfrom_networks = 0.5\nexact = 1.0\nnetworks=["lenet5"]')
    words = ["bench", str(campaign), "--framework", "synthetic", "-o", "a.h5"]
    cli.run(*words)
    printed = cli.run(*words, "--exclude", lenet).err
    assert "3 layers of the excluded networks were measured by an earlier start" in printed


def test_shipped_campaigns_go_by_their_name(cli) -> None:
    planned = cli.json("bench", "quick", "--framework", "synthetic", "--dry-run")
    assert sum(planned["layers"].values()) == 40


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["nowhere"], "no campaign 'nowhere'"),
        (["tiny.toml", "--framework", "abacus"], "no framework 'abacus'"),
        (["tiny.toml", "--framework", "synthetic", "-o", "no/file/a.h5"], "choose another place"),
        (["bad.toml"], "has no sample"),
        (["tiny.toml", "--framework", "torch", "--processes", "2"], "tiny has layers, which one"),
        (
            ["networks.toml", "--framework", "synthetic", "--processes", "2"],
            "framework synthetic on synthetic has no setting 'processes'",
        ),
    ],
)
def test_mistakes_are_one_line(campaign: Path, cli, words: list[str], part: str) -> None:
    Path("bad.toml").write_text("sample = 3\n" + TOML)
    Path("networks.toml").write_text('[networks]\nfiles = ["lenet5"]\n')
    Path("no").write_text("a file where a folder should be")
    printed = cli.error("bench", *words)
    assert part in printed


def test_ctrl_c_exits_130_and_keeps_rows(
    campaign: Path, cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    from resperf.campaign import CampaignResult

    def interrupted(*_: object, **__: object) -> CampaignResult:
        return CampaignResult(Path("a.h5"), "interrupted", 3, {"ok": 3}, 3, 0, 0, 1.0, 0.01)

    monkeypatch.setattr("resperf.campaign.run_campaign", interrupted)
    shown = cli.run("bench", campaign, "--framework", "synthetic", code=130)
    assert "; resume with: resperf " in shown.out


NETWORKS = """
[networks]
files = ["*.onnx"]
batches = [1, 2]
seconds = 0.03
"""


def test_networks_run_under_onnx_runtime_and_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli
) -> None:
    monkeypatch.chdir(tmp_path)
    shipped = Path(__file__).parents[2] / "models" / "networks"
    shutil.copy(shipped / "lenet5.onnx", tmp_path)
    Path("runs.toml").write_text(NETWORKS)
    planned = cli.json("bench", "runs.toml", "--dry-run", "--threads", "1")
    assert (planned["networks"], planned["layers"]) == (2, {})
    words = ["bench", "runs.toml", "-o", "runs.h5", "--threads", "1"]
    result = cli.json(*words)
    assert (result["rows"], result["networks"], result["statuses"]) == (2, 2, {"ok": 2})
    assert "next: resperf dataset info runs.h5" in cli.text(*words)
    dataset = read_dataset(Path("runs.h5"))
    costs, rows = dataset.info.machine_costs, dataset.measurements
    # The machine's speed, and not what layers cost one after another.
    assert costs["check_product_gflops"] > 0
    assert "overhead_ms_per_layer" not in costs
    assert sorted((row.setting.batch, row.setting.threads) for row in rows) == [(1, 1), (2, 1)]
    for row in rows:
        assert 0.001 < row.value("execution_ms") <= row.value("latency_ms") < 100
        # Three in each round; on a busy machine not all rounds count.
        assert row.samples["execution_ms"].taken >= 3
    cli.text("dataset", "check", "runs.h5")
    assert cli.json("dataset", "info", "runs.h5")["networks"]["rows"] == 2
    cli.text("dataset", "export", "runs.h5", "-o", "runs.csv")
    header, *lines = Path("runs.csv").read_text().splitlines()
    assert header.startswith("name,digest,status,repeat")
    assert [line.split(",")[0] for line in lines] == ["lenet5", "lenet5"]
    # Layers are no part of it: layer-level methods have nothing to learn from.
    assert cli.error("train", "runs.h5", "-o", "mine").count("\n") == 1


def test_the_shipped_campaign_of_networks_runs_all_of_them(
    cli,
) -> None:
    shown = cli.text("bench", "networks-cpu", "--framework", "synthetic", "--dry-run")
    # Sixteen networks, at batch 1 and 8.
    assert "networks       32 runs" in shown


def test_a_dry_run_plans_for_devices_that_are_not_here(campaign: Path, cli) -> None:
    words = ["bench", str(campaign), "--framework", "tensorrt", "--dry-run", "--device"]
    shown = cli.run(*words, "cuda:0")
    assert "tiny on cuda with tensorrt, not started" in shown.out
    assert "note: planned for a device that is not here, by the rules of its target:" in shown.err
    values = cli.json(*words, "a100")
    # 12 configurations of 4 s to build and some 0.2 s to sample.
    assert values["hours"] == pytest.approx(12 * 4.2 / 3600, rel=0.05)
    assert values["layers"] == {"dense": 12}
    assert values["too_large"] == 0
    assert "amp does not exist in tensorrt/cuda" in cli.error(*words, "a100", "--precision", "amp")
    words[3] = "onnxruntime"
    assert "no setting 'compiled'" in cli.error(*words, "cuda:0", "--compiled", "graph")
    campaign.write_text(TOML.replace("features_out = 5", "features_out = 40_000_000"))
    with campaign.open("a") as file:
        file.write("[constraints]\nlargest_weight_bytes = 10_000_000_000_000\n"
                   "largest_macs = 10_000_000_000_000\nlargest_time_ms = 1e9\n")  # fmt: skip
    values = cli.json(*words, "p1000")
    assert 0 < values["too_large"] <= 12


def test_a_plan_without_the_device_is_that_with_it(
    campaign: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise CampaignError("nobody is here")

    spec = Campaign.from_toml(campaign)
    bench = Bench(target("synthetic"))
    here, *_ = plan_campaign(spec, bench, absent=True)
    monkeypatch.setattr("resperf.campaign.bench.WorkerProcess", fail)
    absent, setting, _ = plan_campaign(spec, bench, absent=True)
    assert absent.items == here.items
    assert setting.framework == "synthetic"
    assert absent.notes == (
        "planned for a device that is not here, by the rules of its target: nobody is here",
    )
    with pytest.raises(CampaignError, match="nobody is here"):
        plan_campaign(spec, bench)
