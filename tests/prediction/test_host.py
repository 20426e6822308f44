"""Warnings where a bundle's machine is not this one."""

from __future__ import annotations

import dataclasses
from importlib.metadata import version

import pytest

from resperf.machine import this_machine
from resperf.prediction.host import host_warnings, installed_version


@pytest.fixture
def here():
    return this_machine(
        device="cpu", framework="onnxruntime", framework_version=version("onnxruntime"),
        provider="CPUExecutionProvider", threads=3, settings={"nchwc_block": "16"},
    )  # fmt: skip


def test_a_bundle_of_this_machine_brings_no_warning(here):
    assert host_warnings(here) == ()
    assert host_warnings(here, threads=3) == ()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("processor", "Z80"),
        ("instruction_set", "mmx"),
        ("cores", 999),
        ("framework_version", "0.1"),
    ],
)
def test_another_machine_or_version_is_named(here, field, value):
    [warning] = host_warnings(dataclasses.replace(here, **{field: value}))
    assert f"{field}: {getattr(here, field)} here, {value} there" in warning


def test_a_bundle_for_another_device_is_about_another_machine_by_intention(here):
    assert host_warnings(dataclasses.replace(here, device="1080ti", processor="Z80")) == ()


def test_a_framework_that_is_not_installed_is_not_compared(here):
    assert installed_version("cpu", "no such framework") is None
    other = dataclasses.replace(here, framework="no such framework", framework_version="7")
    assert host_warnings(other) == ()
