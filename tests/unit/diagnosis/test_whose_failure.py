"""Whose failure an error is: its type, who raised it, what it quotes and where it was raised decide, not words anywhere in its text.

For each kind at least three texts, and controls beside them that must be answered otherwise.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from mldebug.core.model import Confidence
from mldebug.diagnosis.exits.outcome import ExitOutcome
from mldebug.diagnosis.exits.words.blame import Blame, blame_of
from mldebug.diagnosis.exits.words.error_types import ErrorType, type_of
from mldebug.diagnosis.exits.words.last_words import error_of
from mldebug.diagnosis.exits.words.output import parse_error_file
from mldebug.diagnosis.exits.words.raised_in import raised_in
from shared.diagnosis.fieldexits import outcome_of

JOB = '  File "/job/train.py", line 88, in train_step\n    loss = self.step(batch)'
PACKAGES = "/venv/lib/python3.12/site-packages/"
HEAD = "Traceback (most recent call last):\n"
OWN = f"{HEAD}{JOB}\nValueError: shard 7 has 12 rows, 16 expected"
VICTIM = f"{HEAD}{JOB}\nRuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.3]:4711"  # fmt: skip


def ended(folder: Path, text: str, rank: int = 1, mark: bool = True) -> ExitOutcome:
    """Rank 1 of four ends with this text, and the launcher ends the others."""
    lines = "\n".join(f"[rank{rank}]: {line}" for line in text.split("\n")) if mark else text
    ranks: dict[str, list[Any]] = {str(rank): [{"sleep": 8}, lines, {"exit": 1}], "*": [{"sleep": 8}]}  # fmt: skip
    plan = folder / "it.plan.json"
    plan.write_text(json.dumps({"ranks": ranks}))
    return outcome_of(plan, 4)


def sure(outcome: ExitOutcome) -> list[int | None]:
    """Who is named at more than `low`."""
    found = outcome.finding
    return [one.rank for one in found.culprits] if found and found.confidence is not Confidence.LOW else []  # fmt: skip


def named(outcome: ExitOutcome) -> list[int | None]:
    """Who is named at all."""
    return [one.rank for one in outcome.finding.culprits] if outcome.finding else []


# --- quotes --------------------------------------------------------------------------------------------

INTRODUCTIONS = {
    "Ray Train 2": "ray.train.v2.api.exceptions.WorkerGroupError: Training failed due to worker errors:\n[Rank 2]\n",
    "Ray Train 2.49": "ray.train.v2.api.exceptions.WorkerGroupError: Training failed due to worker errors:\n[Rank 2 Error Snippet]:\n",
    "torch.multiprocessing": "torch.multiprocessing.spawn.ProcessRaisedException: \n\n-- Process 2 terminated with the following error:\n",
    "torch 1.4": "Exception: \n\n-- Process 2 terminated with the following error:\n",
    "Paddle": "Exception: \n\n----------------------------------------------\nProcess 2 terminated with the following error:\n----------------------------------------------\n\n",
    "torch's RPC": "ValueError: On WorkerInfo(id=2, name=worker2):\nValueError('shard 7')\n",
    "Lightning": "lightning.fabric.utilities.exceptions.DeadlockDetectedException: DeadLock detected from rank: 2 \n ",
    "a person": "RuntimeError: stopped\nrank 2 reported:\n",
}  # fmt: skip


@pytest.mark.parametrize("introduction", INTRODUCTIONS.values(), ids=INTRODUCTIONS)
def test_who_is_quoted_is_named_and_never_who_quotes(introduction: str, tmp_path: Path) -> None:
    text = f"{HEAD}{JOB}\n{introduction}{OWN}"
    outcome = ended(tmp_path, text)
    assert sure(outcome) == [2]
    assert "shard 7 has 12 rows" in outcome.sentence


@pytest.mark.parametrize("introduction", INTRODUCTIONS.values(), ids=INTRODUCTIONS)
def test_a_victim_that_is_quoted_names_nobody(introduction: str, tmp_path: Path) -> None:
    assert named(ended(tmp_path, f"{HEAD}{JOB}\n{introduction}{VICTIM}")) == []


@pytest.mark.parametrize("introduction", INTRODUCTIONS.values(), ids=INTRODUCTIONS)
def test_who_quotes_itself_is_named(introduction: str, tmp_path: Path) -> None:
    assert sure(ended(tmp_path, f"{HEAD}{JOB}\n{introduction}{OWN}", rank=2)) == [2]


@pytest.mark.parametrize(
    "text",
    [
        f"{HEAD}{JOB}\nmonarch._src.actor.actor_mesh.ActorError: A remote actor call has failed.\nTraceback of where the remote call failed (most recent call last):\n{JOB}\nValueError: bad",
        f"{HEAD}{JOB}\nray.exceptions.RayTaskError(ValueError): ray::Trainer.step() (pid=4711, ip=10.0.0.3)\n{JOB}\nValueError: bad",
        "the other side wrote:\n" + "\n".join(f"> {line}" for line in OWN.split("\n")),
        f"RuntimeError: stopped\nremote worker raised an exception:\n{OWN}",
    ],
)  # fmt: skip
def test_quotes_without_a_number_name_nobody(text: str, tmp_path: Path) -> None:
    assert named(ended(tmp_path, text)) == []


@pytest.mark.parametrize(
    "text",
    [
        f"{HEAD}{JOB}\nValueError: Caught ValueError in DataLoader worker process 3.\nOriginal {OWN}",
        f"{HEAD}{JOB}\nRuntimeError: Caught RuntimeError in replica 1 on device 1.\nOriginal {OWN}",
        f'multiprocessing.pool.RemoteTraceback: \n"""\n{OWN}\n"""\n\nThe above exception was the direct cause of the following exception:\n\n{OWN}',
        f"first look:\n{OWN}",
    ],
)  # fmt: skip
def test_what_a_process_of_its_own_raised_is_no_quote(text: str, tmp_path: Path) -> None:
    assert sure(ended(tmp_path, text)) == [1]


def test_several_quotes_name_whose_own_failure_is_among_them(tmp_path: Path) -> None:
    head = f"{HEAD}{JOB}\nray.train.v2.api.exceptions.WorkerGroupError: Training failed due to worker errors:\n"  # fmt: skip
    text = f"{head}[Rank 0,3 Error Snippet]:\n{VICTIM}\n[Rank 2 Error Snippet]:\n{OWN}"
    assert sure(ended(tmp_path, text)) == [2]
    both = f"{head}[Rank 0 Error Snippet]:\n{OWN}\n[Rank 2 Error Snippet]:\n{OWN}"
    assert sure(ended(tmp_path, both)) == []


CHECKPOINT = (
    "CheckpointException: CheckpointException ranks:dict_keys([2])\nTraceback (most recent call last): (RANK 2)\n"
    '  File "/job/writer.py", line 12, in write\n    os.fsync(fd)\nOSError: [Errno 5] Input/output error'
)


def test_all_ranks_of_a_checkpoint_name_the_one_that_failed(tmp_path: Path) -> None:
    lines = f"{HEAD}{JOB}\ntorch.distributed.checkpoint.api.{CHECKPOINT}".split("\n")
    ranks = {
        str(rank): [{"sleep": 8 + 3 * at}, "\n".join(f"[rank{rank}]: {one}" for one in lines), {"exit": 1}]
        for at, rank in enumerate((1, 0, 2, 3))
    }  # fmt: skip
    plan = tmp_path / "it.plan.json"
    plan.write_text(json.dumps({"ranks": ranks}))
    assert sure(outcome_of(plan, 4)) == [2]


def test_an_error_file_quotes_as_well() -> None:
    error = parse_error_file(json.dumps({"message": {"message": CHECKPOINT}}).encode())
    assert error is not None
    assert error.blames_peer
    assert error.accuses is not None
    assert error.accuses.ranks == (2,)
    assert error.accuses.quoted == "OSError: [Errno 5] Input/output error"
    plain = error_of("ValueError: ranks 2", "ValueError: ranks 2", (), "its error file")
    assert not plain.blames_peer


# --- types ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "blame"),
    [
        # a type of local nature: whatever its words are
        ("KeyError: 'some worker waits for rank 3'", Blame.OWN),
        ("AttributeError: module 'torch.distributed' has no attribute 'CollectiveFingerPrint'", Blame.OWN),
        ("ImportError: cannot import name 'RendezvousTimeoutError' from 'torch.distributed'", Blame.OWN),
        ("FloatingPointError: loss is nan, other ranks are fine", Blame.OWN),
        ("torch.OutOfMemoryError: CUDA out of memory. Process 4711 has 3 GiB. Another process has 70 GiB memory in use.", Blame.OWN),
        ("sqlite3.OperationalError: no such table: other_processes", Blame.OWN),
        ("sqlite3.OperationalError: database is locked by another process", Blame.UNCLEAR),
        ("FloatingPointError: gradients are inconsistent between workers", Blame.UNCLEAR),
        ("TypeError: dtype of the router must be the same on all ranks", Blame.UNCLEAR),
        # a statement about the job
        ("ValueError: heartbeat timeout must be int", Blame.OWN),
        ("ValueError: each worker must have its own seed, other workers have 3", Blame.OWN),
        ("AssertionError: schedule has 3 micro-batches waiting for rank 2", Blame.UNCLEAR),
        ("ValueError: Timed out while waiting for all processes to reach barrier of step 200", Blame.PEER),
        ("AssertionError: one of the workers died during validation", Blame.PEER),
        ("ValueError: init failed: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.3]:4711", Blame.PEER),
        ("AssertionError: config hash must be the same across all ranks", Blame.UNCLEAR),
        ("AssertionError: Rank 1 has different values for step: 8016. Other ranks: 7870", Blame.UNCLEAR),
        ("ValueError: number of batches differs between the ranks of this group", Blame.UNCLEAR),
        # the operating system's
        ("OSError: [Errno 98] Address already in use: another process listens on port 8080", Blame.OWN),
        ("BlockingIOError: [Errno 11] /data/x.h5 is in use by another process", Blame.UNCLEAR),
        ("ConnectionResetError: [Errno 104] Connection reset by peer: s3://bucket/shard-7", Blame.OWN),
        ("BrokenPipeError: [Errno 32] Broken pipe: '/tmp/feeder.fifo'", Blame.OWN),
        ("ConnectionRefusedError: [Errno 111] Connection refused", Blame.UNCLEAR),
        ("ConnectionRefusedError: cannot reach tcp://10.0.0.3:29500", Blame.UNCLEAR),
        ("TimeoutError: no answer within 600 s, deadline passed", Blame.UNCLEAR),
        ("TimeoutError", Blame.UNCLEAR),
        ("queue.Empty", Blame.UNCLEAR),
        # clients of services
        ("requests.exceptions.ConnectionError: ('Connection aborted.', ConnectionResetError(104, 'Connection reset by peer'))", Blame.UNCLEAR),
        ("aiohttp.client_exceptions.ServerDisconnectedError: Server disconnected", Blame.UNCLEAR),
        ("httpx.ReadTimeout", Blame.UNCLEAR),
        ("requests.exceptions.HTTPError: 504 Server Error: Gateway Time-out for url: https://huggingface.co/x", Blame.OWN),
        ("urllib.error.URLError: <urlopen error https://data.example.org/x: timed out>", Blame.OWN),
        ("google.api_core.exceptions.ServiceUnavailable: 503 failed to connect to all addresses", Blame.OWN),
        ("aiohttp.client_exceptions.ClientConnectorError: Cannot connect to host 10.0.0.3:30000 ssl:default", Blame.UNCLEAR),
        ("requests.exceptions.ConnectionError: HTTPConnectionPool(host='node-3', port=8000): Max retries exceeded with url: /generate", Blame.UNCLEAR),
        # what passes on
        ("ray.train.base_trainer.TrainingFailedError: The Ray Train run failed. Please inspect the previous error messages for a cause.", Blame.PEER),
        ("ray.train._internal.utils.TrainingWorkerError: x", Blame.PEER),
        ("ray.exceptions.ActorUnschedulableError: The actor is not schedulable: the node is gone", Blame.PEER),
        ("RuntimeError: Worker failed with error 'CUDA out of memory', please check the stack trace above for the root cause", Blame.PEER),
        ("RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {'EngineCore_0': 1}", Blame.PEER),
        ("ray.exceptions.RayTaskError(OutOfMemoryError): ray::W.f() (pid=4711, ip=10.0.0.3)\nCUDA error: device-side assert triggered", Blame.PEER),
        # libraries through which ranks talk
        ("nixl_cu12._bindings.nixlRemoteDisconnectError: NIXL_ERR_REMOTE_DISCONNECT", Blame.PEER),
        ("nixl._bindings.nixlBackendError: NIXL_ERR_BACKEND", Blame.PEER),
        ("nvidia_resiliency_ext.inprocess.exception.RestartAbort: x", Blame.UNCLEAR),
        ("grpc._channel._InactiveRpcError: <_InactiveRpcError of RPC that terminated with:", Blame.UNCLEAR),
        ("zmq.error.Again: Resource temporarily unavailable", Blame.UNCLEAR),
        # general
        ("RuntimeError: xla/mesh_service.cc:329 : Check failed: channel->WaitForConnected( deadline_)", Blame.UNCLEAR),
        ("RuntimeError: expected 4 participants, saw 3", Blame.UNCLEAR),
        ("Exception: upstream stage 2 gave nothing", Blame.UNCLEAR),
        ("RuntimeError: CUDA error: an error external to the process", Blame.UNCLEAR),
        ("ssl.SSLError: [SSL] record layer failure", Blame.UNCLEAR),
        ("RuntimeError: check failed: recvFromPeerQueue(5)", Blame.UNCLEAR),
        ("Memory access fault by GPU node-3 (Agent handle: 0x5a) on address 0x70. Reason: Unknown.", Blame.OWN),
        ("RuntimeError: DeepEP error: CPU recv timeout", Blame.PEER),
        ("RuntimeError: oneCCL: exec.cpp:134 start_workers: EXCEPTION: failed to start worker # 0", Blame.UNCLEAR),
        ("RuntimeError: CUDA error: remote memory access faulted by peer", Blame.UNCLEAR),
        ("std::system_error: Connection reset by peer", Blame.UNCLEAR),
        ("c10::DistNetworkError: Interrupted system call", Blame.PEER),
        ("Fatal Python error: Aborted", Blame.UNCLEAR),
        ("Fatal Python error: Bus error", Blame.OWN),
        ("RuntimeError: [enforce fail at gloo/transport/tcp/device.cc:83] ifa != nullptr. Unable to find address for: eth7", Blame.OWN),
        ("RuntimeError: mat1 and mat2 shapes cannot be multiplied (3x4 and 5x6)", Blame.OWN),
        ("RuntimeError: The size of tensor a (3) must match the size of tensor b (4)", Blame.OWN),
        ("RuntimeError: DataLoader worker (pid 4711) is killed by signal: Killed.", Blame.OWN),
        ("my.package.BadSample: shard 7", Blame.OWN),
    ],
)  # fmt: skip
def test_the_type_of_an_error_goes_before_its_words(words: str, blame: Blame) -> None:
    assert blame_of(words) is blame


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("KeyError", ErrorType.LOCAL), ("json.decoder.JSONDecodeError", ErrorType.LOCAL), ("AssertionError", ErrorType.STATED),
        ("EOFError", ErrorType.SYSTEM), ("huggingface_hub.errors.LocalEntryNotFoundError", ErrorType.SERVICE),
        ("WorkerGroupError", ErrorType.RELAY), ("torch.distributed.DistBackendError", ErrorType.SHARED),
        ("RuntimeError", ErrorType.GENERAL), ("torch.AcceleratorError", ErrorType.GENERAL), ("rayon.PoolError", ErrorType.GENERAL),
    ],
)  # fmt: skip
def test_types_are_known_by_name(name: str, kind: ErrorType) -> None:
    assert type_of(name) is kind


@pytest.mark.parametrize(
    ("line", "sure_of"),
    [
        ("assert x.shape == y.shape", [1]),
        ("assert batch_size % 4 == 0", [1]),
        ("assert n_ranks == 8", []),
        ("assert torch.equal(weights, first_weights)", []),
        ("assert len(gathered_tokens) == 8", []),
    ],
)
def test_an_assertion_without_words_is_judged_by_its_line(
    line: str, sure_of: list[int], tmp_path: Path
) -> None:
    text = f"{HEAD}{JOB}\nAssertionError".replace("loss = self.step(batch)", line)
    assert sure(ended(tmp_path, text)) == sure_of


@pytest.mark.parametrize(
    "words",
    [
        "AssertionError: Tensor-likes are not close!\n\nMismatched elements: 1 / 4 (25.0%)",
        "AssertionError: Scalars are not equal!\n\nExpected 4 but got 3.",
        "AssertionError: \nNot equal to tolerance rtol=1e-07, atol=0",
        "AssertionError: \nArrays are not almost equal to 6 decimals",
    ],
)
def test_what_a_library_has_compared_may_be_another_ranks(words: str) -> None:
    lines = (HEAD + f'  File "{PACKAGES}torch/testing/_comparison.py", line 9, in assert_close\n    raise error').split("\n")  # fmt: skip
    place = raised_in([*lines, *words.split("\n")], 0, 3)
    assert blame_of(words, place) is Blame.UNCLEAR
    shapes = "AssertionError: The values for attribute 'shape' do not match: torch.Size([2]) != torch.Size([3])."
    assert blame_of(shapes, place) is Blame.OWN


# --- where it was raised -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("frame", "right"),
    [
        (f'{PACKAGES}ray/_private/worker.py", line 931, in get\n    raise value', []),
        (f'{PACKAGES}deep_ep/buffer.py", line 500, in dispatch\n    self.runtime.run(x)', []),
        ('src/mpi4py/MPI.src/Comm.pyx", line 1073, in mpi4py.MPI.Comm.allreduce', []),
        ('/job/train.py", line 40, in sync\n    comm.Allreduce(a, b)', []),
        (f'{PACKAGES}someserve/runtime.py", line 1, in pull\n    raise RuntimeError(words)', []),
        # what the job itself raises may be about ranks, in words that nobody can foresee
        ('/job/train.py", line 40, in sync\n    raise RuntimeError(words)', []),
        ('/job/train.py", line 40, in sync\n    raise RuntimeError(all_reduce(words))', []),
        # controls
        (f'{PACKAGES}torch/nn/modules/linear.py", line 1, in forward\n    return F.linear(x)', [1]),
        (f'{PACKAGES}transformers/trainer.py", line 1, in train\n    raise RuntimeError(words)', [1]),
    ],
)  # fmt: skip
def test_what_a_library_of_the_group_raises_without_a_word_is_unclear(
    frame: str, right: list[int], tmp_path: Path
) -> None:
    text = f'{HEAD}{JOB}\n  File "{frame}\nRuntimeError: status 12'
    assert sure(ended(tmp_path, text)) == right


@pytest.mark.parametrize(
    ("frame", "error", "right"),
    [
        # bytes of another process, which may have died while it wrote them
        ('/usr/lib/python3.12/multiprocessing/spawn.py", line 126, in _main', "_pickle.UnpicklingError: pickle data was truncated", []),
        (f'{PACKAGES}torch/distributed/distributed_c10d.py", line 3010, in _tensor_to_object', "_pickle.UnpicklingError: invalid load key", []),
        ('/usr/lib/python3.12/multiprocessing/connection.py", line 251, in recv', "zlib.error: Error -3", []),
        # controls: of a file, and another error of such code
        (f'{PACKAGES}torch/serialization.py", line 1246, in _legacy_load', "_pickle.UnpicklingError: pickle data was truncated", [1]),
        ('/job/data.py", line 12, in read', "struct.error: unpack requires a buffer of 8 bytes", [1]),
        (f'{PACKAGES}torch/distributed/distributed_c10d.py", line 1, in new_group', "TypeError: an int is required", [1]),
    ],
)  # fmt: skip
def test_bytes_that_make_no_sense_are_the_fault_of_whoever_wrote_them(
    frame: str, error: str, right: list[int], tmp_path: Path
) -> None:
    assert sure(ended(tmp_path, f'{HEAD}{JOB}\n  File "{frame}\n{error}')) == right


# --- what was printed right before ---------------------------------------------------------------------

CLEANING = f"{HEAD}{JOB}\nAttributeError: 'NoneType' object has no attribute 'finish'"


@pytest.mark.parametrize(
    ("text", "right"),
    [
        (f"{VICTIM}\n{CLEANING}", []),
        (f"ERROR training failed\n{VICTIM}\n\ncleaning up\n{CLEANING}", []),
        (f"{HEAD}{JOB}\nEOFError\n{CLEANING}", []),
        (f"{OWN}\n{CLEANING}", [1]),
        (f"{VICTIM}\n" + "\n".join(f"step {step} loss 2.0" for step in range(9)) + f"\n{CLEANING}", [1]),
    ],
)  # fmt: skip
def test_who_fails_while_it_cleans_up_after_a_peer_is_a_victim(
    text: str, right: list[int], tmp_path: Path
) -> None:
    assert sure(ended(tmp_path, text)) == right


# --- C++ exceptions ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "says", "right"),
    [
        ("c10::DistNetworkError", "Interrupted system call", []),
        ("std::system_error", "Connection reset by peer", []),
        ("gloo::IoException", "[gloo/transport/tcp/pair.cc:598] Connection closed by peer [127.0.1.1]:2345", []),
        ("c10::DistBackendError", "[PG 0 (default_pg) Rank 1] Watchdog caught collective operation timeout", []),
        ("std::runtime_error", "vocabulary has 12 entries, 16 expected", [1]),
        ("std::bad_alloc", "std::bad_alloc", [1]),
        ("c10::AcceleratorError", "CUDA error: an illegal memory access was encountered", [1]),
    ],
)  # fmt: skip
def test_the_type_of_a_c_plus_plus_exception_counts(
    kind: str, says: str, right: list[int], tmp_path: Path
) -> None:
    text = f"terminate called after throwing an instance of '{kind}'\n  what():  {says}"
    assert sure(ended(tmp_path, text)) == right


# --- sentences -----------------------------------------------------------------------------------------


def test_nobody_is_said_to_blame_others_who_does_not(tmp_path: Path) -> None:
    for words in ("ValueError: some rank option is wrong", "RuntimeError: status of the worker pool is 3"):  # fmt: skip
        assert "blames another" not in ended(tmp_path, f"{HEAD}{JOB}\n{words}").sentence
    assert "blames another" in ended(tmp_path, VICTIM).sentence
