import json
import shutil
from pathlib import Path

import pytest

from resperf.cli.main import main
from resperf.dataset import read_dataset

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


def test_bench_writes_a_dataset_and_says_what_comes_next(
    campaign: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("datasets").mkdir()
    assert main(["bench", str(campaign), "--framework", "synthetic"]) == 0
    output = Path("datasets/tiny-synthetic-synthetic.h5")
    assert len(read_dataset(output).measurements) == 12
    printed = capsys.readouterr().out
    assert f"{output}: 12 rows (12 ok)" in printed
    assert f"next: resperf train {output}" in printed


def test_bench_as_json(campaign: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["bench", str(campaign), "--framework", "synthetic", "-o", "a.h5", "--json"]
    assert main([*words, "--samples", "5", "--seed", "8"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert (values["rows"], values["reason"], values["statuses"]) == (5, "complete", {"ok": 5})
    assert read_dataset(Path("a.h5")).info.seed == 8


def test_the_networks_of_a_folder_give_layers(
    campaign: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shipped = Path(__file__).parents[2] / "models" / "networks"
    Path("mine").mkdir()
    shutil.copy(shipped / "lenet5.onnx", "mine")
    campaign.write_text(TOML + "[mixture]\nfrom_networks = 1.0\nexact = 1.0\n")
    words = ["bench", str(campaign), "--framework", "synthetic", "-o", "a.h5", "--samples", "3"]
    assert main([*words, "--networks", "mine"]) == 0
    measured = [row.layer.fields() for row in read_dataset(Path("a.h5")).measurements]
    assert {layer["features_in"] for layer in measured} == {400, 120, 84}
    # Layers of them that the campaign does not draw are named.
    printed = capsys.readouterr().err
    assert "layers of the networks are of kinds that campaign tiny does not draw: " in printed
    assert "conv (2)" in printed
    campaign.write_text(TOML)
    assert main([*words, "--networks", "mine"]) == 2
    assert "campaign tiny draws nothing from networks" in capsys.readouterr().err
    Path("none").mkdir()
    assert main([*words, "--networks", "none"]) == 2
    assert "no ONNX file at none" in capsys.readouterr().err


def test_an_adaptive_campaign_chooses_some_of_its_layers(
    campaign: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["bench", str(campaign), "--framework", "synthetic", "--samples", "90"]
    assert main([*words, "-o", "plain.h5"]) == 0
    assert main([*words, "-o", "a.h5", "--adaptive"]) == 0
    plain, chosen = (
        {row.layer.key for row in read_dataset(Path(name)).measurements}
        for name in ("plain.h5", "a.h5")
    )
    assert len(plain) == len(chosen) == 90
    assert 23 <= len(plain & chosen) < 80
    capsys.readouterr()
    assert main([*words, "--adaptive", "--dry-run"]) == 0
    assert "after the first 23 layers" in capsys.readouterr().out


def test_a_dry_run_measures_nothing(campaign: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["bench", str(campaign), "--framework", "synthetic", "--dry-run"]
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert "dense" in printed
    assert "12 layers" in printed
    assert "of disk" in printed
    assert main([*words, "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["layers"] == {"dense": 12}
    assert values["hours"] > 0
    assert list(Path().glob("**/*.h5")) == []


def test_a_dry_run_says_what_fits_the_time(
    campaign: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["bench", str(campaign), "--framework", "synthetic", "--dry-run", "--hours"]
    assert main([*words, "1e-5"]) == 0
    assert "1e-05 hours suffice for about the first 1 layers" in capsys.readouterr().out
    assert main([*words, "9"]) == 0
    assert "about the first" not in capsys.readouterr().out
    assert main([*words, "1e-5", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["layers_in_time"] == 1
    campaign.write_text(TOML + "[run]\nhours = 1e-5\n")
    assert main(words[:-1]) == 0
    printed = capsys.readouterr().out
    assert "each run stops after 1e-05 hours" in printed
    assert "about the first 1 layers" in printed
    assert main([*words[:-1], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["time_limit_hours"] == 1e-5
    assert main([*words, "9"]) == 0
    assert "each run stops after 9 hours" in capsys.readouterr().out
    assert main([*words, "9", "--check-fusion"]) == 2
    assert "--check-fusion runs measurements" in capsys.readouterr().err


def test_layers_that_are_excluded_too_late_are_told(
    campaign: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lenet = Path(__file__).parents[2] / "models" / "networks" / "lenet5.onnx"
    campaign.write_text(TOML + '[mixture]\nfrom_networks = 0.5\nexact = 1.0\nnetworks=["lenet5"]')
    words = ["bench", str(campaign), "--framework", "synthetic", "-o", "a.h5"]
    assert main(words) == 0
    capsys.readouterr()
    assert main([*words, "--exclude", str(lenet)]) == 0
    printed = capsys.readouterr().err
    assert "3 layers of the excluded networks were measured by an earlier start" in printed


def test_shipped_campaigns_go_by_their_name(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["bench", "quick", "--framework", "synthetic", "--dry-run", "--json"]
    assert main(words) == 0
    assert sum(json.loads(capsys.readouterr().out)["layers"].values()) == 40


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["nowhere"], "no campaign 'nowhere'"),
        (["tiny.toml", "--framework", "abacus"], "no framework 'abacus'"),
        (["tiny.toml", "--framework", "synthetic", "-o", "no/file/a.h5"], "choose another place"),
        (["bad.toml"], "has no sample"),
    ],
)
def test_mistakes_are_one_line(
    campaign: Path, capsys: pytest.CaptureFixture[str], words: list[str], part: str
) -> None:
    Path("bad.toml").write_text("sample = 3\n" + TOML)
    Path("no").write_text("a file where a folder should be")
    assert main(["bench", *words]) == 2
    printed = capsys.readouterr().err
    assert part in printed
    assert printed.count("\n") == 1


def test_ctrl_c_exits_130_and_keeps_rows(
    campaign: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from resperf.campaign import CampaignResult

    def interrupted(*_: object, **__: object) -> CampaignResult:
        return CampaignResult(Path("a.h5"), "interrupted", 3, {"ok": 3}, 3, 0, 0, 1.0, 0.01)

    monkeypatch.setattr("resperf.campaign.run_campaign", interrupted)
    assert main(["bench", str(campaign), "--framework", "synthetic"]) == 130
    assert "; resume with: resperf " in capsys.readouterr().out


NETWORKS = """
[networks]
files = ["*.onnx"]
batches = [1, 2]
seconds = 0.03
"""


def test_networks_run_under_onnx_runtime_and_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    shipped = Path(__file__).parents[2] / "models" / "networks"
    shutil.copy(shipped / "lenet5.onnx", tmp_path)
    Path("runs.toml").write_text(NETWORKS)
    assert main(["bench", "runs.toml", "--dry-run", "--json", "--threads", "1"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert (planned["networks"], planned["layers"]) == (2, {})
    words = ["bench", "runs.toml", "-o", "runs.h5", "--threads", "1"]
    assert main([*words, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["rows"], result["networks"], result["statuses"]) == (2, 2, {"ok": 2})
    assert main(words) == 0
    assert "next: resperf dataset info runs.h5" in capsys.readouterr().out
    rows = read_dataset(Path("runs.h5")).measurements
    assert sorted((row.setting.batch, row.setting.threads) for row in rows) == [(1, 1), (2, 1)]
    for row in rows:
        assert 0.001 < row.value("execution_ms") <= row.value("latency_ms") < 100
        assert row.samples["execution_ms"].taken >= 9
    assert main(["dataset", "check", "runs.h5"]) == 0
    assert main(["dataset", "info", "runs.h5", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.split("\n", 1)[1])["networks"]["rows"] == 2
    assert main(["dataset", "export", "runs.h5", "-o", "runs.csv"]) == 0
    header, *lines = Path("runs.csv").read_text().splitlines()
    assert header.startswith("name,digest,status,repeat")
    assert [line.split(",")[0] for line in lines] == ["lenet5", "lenet5"]
    # Layers are no part of it: layer-level methods have nothing to learn from.
    capsys.readouterr()
    assert main(["train", "runs.h5", "-o", "mine"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_the_shipped_campaign_of_networks_runs_all_of_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["bench", "networks-cpu", "--framework", "synthetic", "--dry-run"]) == 0
    shown = capsys.readouterr().out
    # Sixteen networks, at batch 1 and 8.
    assert "networks       32 runs" in shown
