"""What `auto` takes: a table of machines and models, and nothing but the table."""

from __future__ import annotations

import itertools

import pytest
import torch

from tiny_engine import engine_config, hybrid_config
from trifolium import dtypes
from trifolium.dtypes import DTYPES, Machine, choose
from trifolium.errors import ConfigError

DENSE, HYBRID = engine_config(), hybrid_config()
DELTA_ONLY = hybrid_config().model_copy(update={"feed_forwards": ("dense",) * 4})
EXPERTS_ONLY = hybrid_config().model_copy(update={"mixers": ("attention",) * 4})


@pytest.mark.parametrize(
    ("machine", "dense", "hybrid"),
    [
        (Machine(dot8=True, avx2=True, int8=True, native=True), "int8", "int8"),
        (Machine(dot8=True, avx2=True, int8=True), "int8", "int8"),
        (Machine(avx2=True, int8=True, native=True), "int8", "bfloat16"),
        (Machine(avx2=True, int8=True), "float32", "float32"),
        (Machine(native=True), "float32", "bfloat16"),
        (Machine(dot8=True, native=True), "float32", "bfloat16"),
        (Machine(), "float32", "float32"),
        (Machine(cuda=True), "bfloat16", "bfloat16"),
    ],
)
def test_the_table(machine: Machine, dense: str, hybrid: str) -> None:
    assert choose(DENSE, machine).dtype == dense
    for config in (HYBRID, DELTA_ONLY, EXPERTS_ONLY):
        assert choose(config, machine).dtype == hybrid


def test_four_bits_that_are_stored_are_kept() -> None:
    machine = Machine(avx2=True, int8=True, native=True)
    assert choose(DENSE, machine, four_bit=True).dtype == "int4"
    assert choose(DENSE, Machine(avx2=True, int8=True), four_bit=True).dtype == "float32"
    assert choose(HYBRID, machine, four_bit=True).dtype == "bfloat16"


def test_every_machine_gets_a_dtype_and_a_reason() -> None:
    for features in itertools.product((False, True), repeat=5):
        choice = choose(DENSE, Machine(*features))
        assert choice.dtype in DTYPES and choice.why


def test_auto_is_what_this_machine_is() -> None:
    machine = Machine.here()
    assert machine == Machine.here() and not machine.cuda
    assert dtypes.resolve("auto", DENSE) == choose(DENSE, machine)
    assert [dtypes.resolve(name, HYBRID).dtype for name in DTYPES] == list(DTYPES)


def test_names() -> None:
    assert [dtypes.as_torch(name) for name in DTYPES] == [torch.float32, torch.bfloat16, torch.int8, torch.int4]
    with pytest.raises(ConfigError, match="unknown dtype 'int3': choose auto, float32, bfloat16, int8, int4"):
        dtypes.resolve("int3", DENSE)
