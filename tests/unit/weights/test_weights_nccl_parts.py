"""Rendezvous and deadline of the NCCL group."""

import ctypes
import pickle
import socket
import sys
import threading
import types

import pytest

from gymtrain_trainer.weights.transports.nccl.broadcast import deadline
from gymtrain_trainer.weights.transports.nccl.group import address_towards, by_id, pickled

ID = bytes(range(128))


def test_vllm_unpickles_the_id_as_its_own_structure(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "vllm.distributed.device_communicators.pynccl_wrapper"
    module = types.ModuleType(name)
    fields = {"_fields_": [("internal", ctypes.c_byte * 128)], "__module__": name}
    module.ncclUniqueId = type("ncclUniqueId", (ctypes.Structure,), fields)  # type: ignore[attr-defined]
    for parent in ("vllm", "vllm.distributed", "vllm.distributed.device_communicators"):
        monkeypatch.setitem(sys.modules, parent, types.ModuleType(parent))
    monkeypatch.setitem(sys.modules, name, module)
    found = pickle.loads(pickled(ID))
    assert type(found).__name__ == "ncclUniqueId"
    assert bytes(found) == ID


def test_an_id_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="128 bytes, not 3"):
        pickled(b"abc")


def test_the_id_travels_in_standard_base64() -> None:
    assert by_id(b"\xff" * 128).init_info["nccl_unique_id_b64"].startswith("////")


def test_the_address_is_that_on_the_way_to_the_pods() -> None:
    assert address_towards("127.0.0.1", 9) == "127.0.0.1"


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
def test_an_address_of_ipv6_comes_in_brackets() -> None:
    try:
        assert address_towards("[::1]", 9) == "::1"
    except OSError:
        pytest.skip("no IPv6 here")


def test_what_takes_too_long_is_aborted_with_the_setting_to_change() -> None:
    reasons: list[str] = []
    aborted = threading.Event()

    def abort(reason: str) -> None:
        reasons.append(reason)
        aborted.set()

    with deadline(0.01, abort, "the weight sync"):
        assert aborted.wait(5)
    assert "spec.weightSync.timeoutSeconds" in reasons[0]


def test_where_the_abort_does_not_help_the_process_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gymtrain_trainer.weights.transports.nccl.broadcast._GRACE_SECONDS", 0.01)
    monkeypatch.setattr("logging.shutdown", lambda: None)
    codes: list[int] = []
    ended = threading.Event()

    def end(code: int) -> None:
        codes.append(code)
        ended.set()

    with deadline(0.0, lambda _: None, "the weight sync", end):
        assert ended.wait(5)
    assert codes == [1]


def test_what_is_done_in_time_is_left_alone() -> None:
    reasons: list[str] = []
    with deadline(60.0, reasons.append, "the weight sync"):
        pass
    assert reasons == []
