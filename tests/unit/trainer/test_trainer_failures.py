"""Whose doing a failed rollout is, by what NeMo Gym's servers answer."""

import json

import pytest

from gymtrain_api.spec import OnFailure
from gymtrain_trainer.errors import FailureKind
from gymtrain_trainer.rollouts.failures import Call, action_for, kind_of_answer, kind_of_silence
from gymtrain_trainer.rollouts.inner_error import inner_error
from tests.unit.trainer.trainer_errors import passed_on, raised

INFRASTRUCTURE, TIMEOUT, ENVIRONMENT = FailureKind.INFRASTRUCTURE, FailureKind.TIMEOUT, FailureKind.ENVIRONMENT


def of(answer: bytes, status: int = 500, call: Call = Call.ROLLOUT) -> FailureKind:
    return kind_of_answer(call, status, inner_error(answer.decode()))


def named(error: str, kind: str = "resources") -> bytes:
    """What a server under our launcher answers that raised an error."""
    return raised(f"Hit an exception in math ({kind} server): {error}")


def refused(detail: object, status: int, kind: str = "resources") -> bytes:
    """What FastAPI answers for a server under our launcher."""
    return json.dumps({"server": "math", "server_kind": kind, "status": status, "detail": detail}).encode()


def through_the_agent(answer: bytes) -> bytes:
    """The agent's /run calls its own /v1/responses."""
    return passed_on(answer, "SimpleAgent___sums", "SimpleAgent___sums")


@pytest.mark.parametrize("error", ["KeyError('answer')", "1 validation error for Action\n  a field is missing", "E()"])
@pytest.mark.parametrize("server", ["agent", "resources"])
def test_an_exception_of_an_agent_or_a_resources_server_is_the_environments(error: str, server: str) -> None:
    assert of(through_the_agent(named(error, server))) is ENVIRONMENT
    assert of(named(error, server)) is ENVIRONMENT


@pytest.mark.parametrize(("call", "kind"), [(Call.ROLLOUT, ENVIRONMENT), (Call.VERDICT, ENVIRONMENT)])
def test_an_exception_without_a_name_is_the_asked_servers_where_nobody_passed_it_on(
    call: Call, kind: FailureKind
) -> None:
    assert of(raised("KeyError('answer')"), call=call) is kind
    assert of(passed_on(raised("KeyError('answer')"), "SimpleAgent___sums"), call=call) is INFRASTRUCTURE


@pytest.mark.parametrize("error", ["JSONDecodeError('line 1')", "RuntimeError('no logprobs')", "TimeoutError()"])
def test_what_a_model_server_raises_is_infrastructure(error: str) -> None:
    assert of(through_the_agent(named(error, "model"))) is INFRASTRUCTURE


@pytest.mark.parametrize(
    "document",
    [
        {"error": {"message": "no vLLM pod could take the call", "type": "ServiceUnavailable", "code": 503}},
        {"error": {"message": "the pod didn't answer in time", "type": "GatewayTimeout", "code": 500}},
        {"object": "error", "message": "Engine died", "type": "InternalServerError", "code": 500},
    ],
)
def test_errors_of_the_gateway_and_of_vllm_are_infrastructure(document: object) -> None:
    answer = passed_on(json.dumps(document).encode(), "VLLMModel___policy_model", "SimpleAgent___sums")
    assert of(answer) is INFRASTRUCTURE


@pytest.mark.parametrize(
    "error",
    [
        "TimeoutError()",
        "TimeoutError('code timed-out')",
        "TimeoutExpired('python a.py', 5)",
        "ReadTimeout('')",
        "ServerTimeoutError('Timeout on reading data from socket')",
        "TaskPerAttemptTimeoutError('per-task timeout exceeded (60 s)')",
        "APITimeoutError('Request timed out.')",
    ],
)
def test_what_a_server_says_took_too_long_is_a_timeout(error: str) -> None:
    assert of(through_the_agent(named(error, "agent"))) is TIMEOUT


@pytest.mark.parametrize(
    "error",
    [
        "ClientConnectorError('Cannot connect to host judge:8000')",
        "ServerDisconnectedError('Server disconnected')",
        "ConnectionRefusedError(111, 'Connect call failed')",
        "ConnectionResetError(104, 'Connection reset by peer')",
        "ConnectTimeout('')",
        "ConnectionTimeoutError('Connection timeout to host http://judge:8000')",
        "RemoteProtocolError('peer closed connection without sending complete message body')",
        "APIConnectionError('Connection error.')",
        "InternalServerError(\"Error code: 503 - {'error': 'overloaded'}\")",
        "RateLimitError('Error code: 429')",
        "HTTPStatusError(\"Server error '503 Service Unavailable' for url 'http://judge:8000'\")",
        "HTTPError('502 Server Error: Bad Gateway for url: http://judge:8000')",
        "SandboxLostError('sandbox 7 (pod a) is lost: the connection broke')",
        "SandboxUnavailableError('no sandbox within 600 s')",
        "BrokerRefusedError('the broker answered 429')",
        "OSError(28, 'No space left on device')",
        "OSError(24, 'Too many open files')",
        "An unknown error occurred",
    ],
)
def test_what_a_server_lacked_is_infrastructure(error: str) -> None:
    assert of(through_the_agent(named(error))) is INFRASTRUCTURE


def test_a_file_that_the_policy_should_have_written_is_the_environments() -> None:
    assert of(named("FileNotFoundError(2, 'No such file or directory')")) is ENVIRONMENT
    assert of(named("OSError(36, 'File name too long')")) is ENVIRONMENT


@pytest.mark.parametrize(
    ("detail", "status", "kind"),
    [
        ("Unable to parse action from response: 'up'", 400, ENVIRONMENT),
        ("division by zero", 500, ENVIRONMENT),
        ("this server does not hold the rollout's session", 409, INFRASTRUCTURE),
        ("Not Found", 404, INFRASTRUCTURE),
        ([{"loc": ["body", "expected_action"], "msg": "Field required"}], 422, INFRASTRUCTURE),
        ("overloaded", 503, INFRASTRUCTURE),
    ],
)
def test_what_a_server_refuses_by_its_own_code_goes_by_its_status(
    detail: object, status: int, kind: FailureKind
) -> None:
    assert of(through_the_agent(refused(detail, status))) is kind
    assert of(refused(detail, status), status, Call.VERDICT) is kind
    assert of(through_the_agent(refused(detail, status, "model"))) is INFRASTRUCTURE


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_a_server_that_is_away_is_infrastructure_whatever_it_says(status: int) -> None:
    assert of(raised("KeyError('a')"), status) is INFRASTRUCTURE
    assert of(b"upstream connect error", status) is INFRASTRUCTURE


@pytest.mark.parametrize("answer", [b"Internal Server Error", b"", b"[1, 2]", b'{"a": 1}', b"KeyError('a')"])
def test_what_nobody_can_read_is_infrastructure(answer: bytes) -> None:
    assert of(answer) is INFRASTRUCTURE
    assert of(through_the_agent(answer)) is INFRASTRUCTURE


@pytest.mark.parametrize("call", [Call.SESSION, Call.GENERATION])
def test_before_there_is_an_answer_to_judge_nothing_is_the_environments(call: Call) -> None:
    assert of(named("KeyError('a')", "resources"), call=call) is INFRASTRUCTURE
    assert of(named("TimeoutError()", "resources"), call=call) is INFRASTRUCTURE


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        (Call.ROLLOUT, TIMEOUT),
        (Call.GENERATION, TIMEOUT),
        (Call.VERDICT, TIMEOUT),
        (Call.SESSION, INFRASTRUCTURE),
    ],
)
def test_a_deadline_of_ours_is_a_timeout_of_whatever_the_policy_had_a_part_in(call: Call, kind: FailureKind) -> None:
    assert kind_of_silence(call) is kind


def test_each_kind_has_the_action_of_its_field() -> None:
    policy = OnFailure(infrastructure="DropRollout", timeout="Zero", environment="Retry")
    assert [action_for(policy, kind) for kind in FailureKind] == ["DropRollout", "Zero", "Retry"]
