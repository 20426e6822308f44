"""What `import resperf` gives: public names, types, and the command line as a module."""

from __future__ import annotations

import subprocess
import sys
from importlib.resources import files

import pytest

import resperf
from resperf import errors


def fresh_python(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, timeout=60, check=False
    )


def test_every_error_of_the_tree_is_public():
    tree = [
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, Exception)
    ]
    assert len(tree) > 10
    assert {each.__name__ for each in tree} <= set(resperf.__all__)
    assert all(getattr(resperf, each.__name__) is each for each in tree)


def test_every_public_name_is_there_and_importing_the_package_loads_nothing_heavy():
    script = (
        "import sys, resperf\n"
        "heavy = {'numpy', 'onnx', 'onnxruntime', 'pandas', 'rich', 'difflib'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "assert not [name for name in sys.modules if name.startswith('resperf.testing')]\n"
        "assert set(resperf.__all__) <= set(dir(resperf))\n"
        "for name in resperf.__all__: getattr(resperf, name)\n"
        "assert 'pandas' not in sys.modules\n"
    )
    done = fresh_python("-c", script)
    assert done.returncode == 0, done.stderr


def test_prediction_needs_nothing_that_windows_or_macos_lacks():
    script = (
        "import os, signal, sys, numpy, onnx, onnxruntime\n"
        "for name in ('fcntl', 'resource', 'pwd', 'grp', 'termios'): sys.modules[name] = None\n"
        "for name in ('sched_getaffinity', 'sysconf', 'getloadavg', 'statvfs', 'fork', 'setsid',\n"
        "             'getuid', 'geteuid', 'killpg', 'uname'): delattr(os, name)\n"
        "for name in ('SIGKILL', 'SIGALRM', 'SIGHUP', 'setitimer'): delattr(signal, name)\n"
        "import resperf\n"
        "for device in ('h100', 'cpu'):\n"
        "    assert resperf.predict('resnet18', device=device).total_ms > 0\n"
    )
    done = fresh_python("-c", script)
    assert done.returncode == 0, done.stderr


def test_a_device_is_a_model_and_may_be_a_path_or_pytorchs_own_word(tmp_path):
    torch = pytest.importorskip("torch")
    here = resperf.predict("lenet5", device=torch.device("cpu"))
    assert here.total_ms == resperf.predict("lenet5", device="cpu").total_ms
    for word in ("cuda", "cuda:0", "gpu"):
        with pytest.raises(errors.DeviceError, match=f"{word} is no model of a GPU"):
            resperf.predict("lenet5", device=word)
    with pytest.raises(errors.ResperfError, match=r"mycard\.toml cannot be read"):
        resperf.predict("lenet5", device=tmp_path / "mycard.toml")


def test_what_is_estimated_has_no_trained_range():
    from resperf.report.network import network_text

    text = network_text(resperf.predict("lenet5", device="t4", framework="onnxruntime"))
    assert "100% estimated" in text
    assert "outside the trained range" not in text
    assert text.startswith("lenet5, batch 1, on t4 with onnxruntime, fp32: ")
    built = resperf.predict("lenet5", device="t4", framework="tensorflow", compiled=True)
    assert built.subject.compiled == "xla"


def test_the_package_says_that_it_is_typed():
    assert files("resperf").joinpath("py.typed").is_file()


def test_python_m_resperf_is_the_command_line():
    done = fresh_python("-m", "resperf", "--version")
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"resperf, version {resperf.__version__}\n"
    assert fresh_python("-m", "resperf", "predict").returncode == 2


def test_devices_with_bundles_are_listed_before_those_known_by_their_data_sheet():
    listed = resperf.list_devices()
    by_name = {each.name: each for each in listed}
    assert len(by_name) == len(listed)
    assert "onnxruntime" in by_name["cpu"].frameworks
    assert "gpus-torch" in by_name["h100"].bundles
    assert by_name["l40s"].bundles == ()
    assert by_name["l40s"].frameworks == ("torch",)
    has_bundle = [bool(each.bundles) for each in listed]
    assert has_bundle == sorted(has_bundle, reverse=True)
