"""Warnings where a bundle's machine is not this one."""

from __future__ import annotations

from dataclasses import replace
from importlib.metadata import version

import pytest

from resperf.platform import this_platform
from resperf.prediction.host import host_warnings, installed_version
from resperf.settings import Setting

HERE = this_platform("cpu")
SETTING = Setting(
    "onnxruntime", version("onnxruntime"), "CPUExecutionProvider", threads=3,
    options={"nchwc_block": "16"},
)  # fmt: skip


def test_a_bundle_of_this_machine_brings_no_warning():
    assert host_warnings(SETTING, HERE) == ()
    assert host_warnings(SETTING, HERE, threads=3) == ()


@pytest.mark.parametrize(
    ("field", "value"), [("processor", "Z80"), ("instruction_set", "mmx"), ("cores", 999)]
)
def test_another_machine_is_named(field, value):
    [warning] = host_warnings(SETTING, replace(HERE, **{field: value}))
    assert f"{field}: {getattr(HERE, field)} here, {value} there" in warning


def test_of_many_differences_the_first_is_told_and_others_are_named():
    there = replace(HERE, processor="Z80", cores=999, instruction_set="mmx")
    [warning] = host_warnings(SETTING, there)
    assert warning.endswith("Z80 there; also instruction set, cores)")


def test_another_version_is_named():
    [warning] = host_warnings(replace(SETTING, framework_version="0.1"), HERE)
    assert f"framework_version: {version('onnxruntime')} here, 0.1 there" in warning
    assert host_warnings(replace(SETTING, framework_version="0.1"), HERE, versions=False) == ()


def test_a_framework_that_is_not_installed_is_not_compared():
    assert installed_version("cpu", "no such framework") is None
    other = replace(SETTING, framework="no such framework", framework_version="7")
    assert host_warnings(other, HERE) == ()


def test_another_generation_under_the_same_name_is_named():
    [warning] = host_warnings(SETTING, replace(HERE, family=999))
    assert "another generation under the same processor name" in warning


def test_a_bundle_for_another_device_is_about_another_machine_by_intention():
    assert host_warnings(SETTING, replace(HERE, device="1080ti", processor="Z80")) == ()


def test_a_gpu_that_is_not_here_is_told_and_ends_no_prediction(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    [warning] = host_warnings(SETTING, replace(HERE, device="cuda:0"))
    assert warning.startswith("this machine cannot be compared with the bundle's: ")
