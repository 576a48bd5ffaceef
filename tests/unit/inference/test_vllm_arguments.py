"""vLLM's command line and environment, computed from the run."""

from pathlib import Path
from typing import Any

import pytest

from gymtrain_api.spec import GymTrainingRunSpec
from gymtrain_vllm import environment
from gymtrain_vllm.arguments import Member, api_servers, build, check, variables
from gymtrain_vllm.errors import ArgumentsError
from tests.support.specs import smallest_run

MODEL = Path("/gymtrain/model")


def spec(*args: str, gpus: int = 0, dtype: str = "auto") -> GymTrainingRunSpec:
    run = smallest_run(
        model={"source": "hf://Qwen/Qwen3-0.6B", "dtype": dtype}, inference={"args": list(args), "gpus": gpus}
    )
    return GymTrainingRunSpec.model_validate(run["spec"])


def arguments(*args: str, **more: Any) -> list[str]:
    return build(spec(*args, **more), MODEL, 8000)


def of_run(**blocks: Any) -> GymTrainingRunSpec:
    return GymTrainingRunSpec.model_validate(smallest_run(**blocks)["spec"])


ADAPTER: dict[str, Any] = {
    "model": {"source": "hf://Qwen/Qwen3-0.6B", "lora": {"r": 12}},
    "trainer": {"checkpoint": {"size": "1Gi"}},
    "rollout": {"maxStaleness": 2},
}


def test_on_a_cpu_the_model_is_float32_and_nothing_is_compiled() -> None:
    assert {"--dtype=float32", "--enforce-eager"} <= set(arguments())


def test_on_gpus_the_model_keeps_its_type_and_spans_them() -> None:
    found = arguments(gpus=4)
    assert {"--dtype=auto", "--tensor-parallel-size=4"} <= set(found)
    assert "--enforce-eager" not in found


_GUARD = "--middleware=gymtrain_vllm.server_exit.EndsOutOfStep"


@pytest.mark.parametrize(
    "several",
    [
        arguments(gpus=2),
        arguments("--tensor-parallel-size=2"),
        arguments("--pipeline_parallel_size", "2"),
        arguments("-tp", "2"),
        arguments("-pp=2"),
    ],
)
def test_a_server_of_several_workers_ends_when_one_of_them_fails(several: list[str]) -> None:
    assert _GUARD in several


@pytest.mark.parametrize(
    "one",
    [
        arguments(),
        arguments(gpus=1),
        arguments("--max-model-len=2048"),
        arguments("--tensor-parallel-size=1", gpus=1),
        arguments("-tp", "1", "-pp=1", gpus=1),
    ],
)
def test_a_server_of_one_worker_outlives_an_error(one: list[str]) -> None:
    """The trainer provokes one on purpose, as it clears what an earlier one may have left (group.py, `_leave`)."""
    assert _GUARD not in one


def test_a_server_ends_with_a_trainer_that_goes_in_the_middle_of_a_broadcast_and_of_no_other_transfer() -> None:
    guard = "--middleware=gymtrain_vllm.server_exit.EndsAbandoned"
    for transport, expected in (("NCCL", True), ("HTTPFull", False)):
        run = smallest_run(inference={"gpus": 1}, weightSync={"transport": transport})
        found = build(GymTrainingRunSpec.model_validate(run["spec"]), MODEL, 8000)
        assert (guard in found) is expected, transport


def on_nodes(nodes: int, gpus: int, *args: str, member: Member | None = None) -> list[str]:
    run = smallest_run(inference={"nodes": nodes, "gpus": gpus, "args": list(args)})
    return build(GymTrainingRunSpec.model_validate(run["spec"]), MODEL, 8000, member=member)


def test_the_leader_of_a_server_on_several_nodes_serves() -> None:
    found = on_nodes(2, 8, member=Member(0, "10.0.0.1"))
    assert {"--nnodes=2", "--node-rank=0", "--master-addr=10.0.0.1", "--distributed-executor-backend=mp"} <= set(found)
    assert "--headless" not in found


def test_a_worker_of_a_server_on_several_nodes_does_not_serve() -> None:
    found = on_nodes(3, 8, member=Member(2, "10.0.0.1"))
    assert {"--nnodes=3", "--node-rank=2", "--master-addr=10.0.0.1", "--headless"} <= set(found)


def test_all_pods_of_a_server_have_the_same_arguments_but_for_their_place() -> None:
    leader, worker = (set(on_nodes(2, 8, member=Member(index, "10.0.0.1"))) for index in (0, 1))
    assert leader ^ worker == {"--node-rank=0", "--node-rank=1", "--headless"}


def test_a_server_on_one_node_has_no_place_in_a_group() -> None:
    assert not any(
        argument.startswith(("--nnodes", "--node-rank", "--master-", "--headless")) for argument in arguments()
    )


def test_a_server_on_several_nodes_ends_when_one_of_its_workers_fails() -> None:
    assert _GUARD in on_nodes(2, 0)


@pytest.mark.parametrize(
    ("nodes", "gpus", "args", "sizes"),
    [
        (2, 8, [], (8, 2)),
        (2, 0, [], (2, 1)),
        (2, 8, ["--tensor-parallel-size=16"], (16, 1)),
        (2, 8, ["-tp", "4"], (4, 4)),
        (4, 8, ["--pipeline_parallel_size=2"], (16, 2)),
        (2, 8, ["--tensor-parallel-size=8", "--pipeline-parallel-size=2"], (8, 2)),
        (2, 0, ["--tensor-parallel-size=2"], (2, 1)),
    ],
)
def test_workers_are_as_many_as_the_gpus_of_all_nodes(
    nodes: int, gpus: int, args: list[str], sizes: tuple[int, int]
) -> None:
    found = on_nodes(nodes, gpus, *args)
    assert {f"--tensor-parallel-size={sizes[0]}", f"--pipeline-parallel-size={sizes[1]}"} <= set(found)


@pytest.mark.parametrize("args", [["-tp=8", "-pp=1"], ["--tensor-parallel-size=3"], ["--pipeline-parallel-size=64"]])
def test_other_numbers_of_workers_are_refused(args: list[str]) -> None:
    with pytest.raises(ArgumentsError, match="2 nodes with 8 GPUs each have 16"):
        on_nodes(2, 8, *args)


def test_stages_on_cpus_are_refused() -> None:
    with pytest.raises(ArgumentsError, match="--tensor-parallel-size=2"):
        on_nodes(2, 0, "--pipeline-parallel-size=2")


@pytest.mark.parametrize(
    "argument",
    [
        "--distributed-executor-backend=ray",
        "--data-parallel-size=2",
        "-dp=2",
        "-pcp",
        "--prefill_context_parallel_size=2",
    ],
)
def test_what_a_server_on_several_nodes_does_not_support_is_refused_there_alone(argument: str) -> None:
    check(spec(argument))
    with pytest.raises(ArgumentsError, match=r"spec\.inference\.args\[0\]"):
        on_nodes(2, 8, argument)


@pytest.fixture
def knows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A vLLM whose engine keeps the version of its weights."""
    monkeypatch.setattr("gymtrain_vllm.arguments.engine_knows_its_weights", lambda: True)


_FOUR_API_SERVERS = ["--api-server-count=4", "--api_server_count", "-asc=4", "--api-s=4"]


@pytest.mark.parametrize("argument", _FOUR_API_SERVERS)
def test_a_server_can_have_several_api_servers(argument: str, knows: None) -> None:
    assert argument in arguments(argument)
    assert api_servers([argument])


@pytest.mark.parametrize("argument", _FOUR_API_SERVERS)
def test_not_where_each_of_them_would_know_its_own_version_of_the_weights(argument: str) -> None:
    with pytest.raises(ArgumentsError, match=r"args\[0\].* keeps the version of its weights in the API server"):
        check(spec(argument))


def test_nor_where_the_server_spans_nodes_or_serves_adapters(knows: None) -> None:
    with pytest.raises(ArgumentsError, match="a server on several nodes has one API server process"):
        on_nodes(2, 8, "--api-server-count=2")
    with pytest.raises(ArgumentsError, match="a server of adapters has one API server process"):
        check(of_run(**ADAPTER, inference={"args": ["--api-server-count=2"]}))


def test_other_arguments_say_nothing_about_api_servers() -> None:
    assert not api_servers(["--api-key=x", "--max-model-len=2", "api-server-count"])


def test_a_type_of_the_users_choice_wins() -> None:
    assert "--dtype=bfloat16" in arguments(dtype="bfloat16")


def test_weights_are_pulled_into_a_model_of_random_ones() -> None:
    found = build(of_run(), MODEL, 8000)
    assert {'--weight-transfer-config={"backend": "gymtrain_pull"}', "--load-format=dummy"} <= set(found)


def test_between_gpus_weights_come_by_nccl() -> None:
    found = build(of_run(trainer={"gpus": 1}, inference={"gpus": 1}), MODEL, 8000)
    assert {'--weight-transfer-config={"backend": "nccl"}', "--load-format=dummy"} <= set(found)


def test_for_adapters_the_base_model_is_loaded_and_there_is_room_for_each_version() -> None:
    found = build(of_run(**ADAPTER), MODEL, 8000)
    assert {"--enable-lora", "--max-loras=4", "--max-lora-rank=16", "--load-format=auto"} <= set(found)
    assert not any(argument.startswith("--weight-transfer-config") for argument in found)
    assert variables(of_run(**ADAPTER), {}, Path("/s"))["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "1"
    assert "VLLM_ALLOW_RUNTIME_LORA_UPDATING" not in variables(of_run(), {}, Path("/s"))


def test_an_adapter_that_vllm_cannot_serve_is_refused() -> None:
    run = of_run(**{**ADAPTER, "model": {"source": "hf://Qwen/Qwen3-0.6B", "lora": {"r": 1024}}})
    with pytest.raises(ArgumentsError, match="rank 1024 is more than vLLM serves"):
        build(run, MODEL, 8000)


def test_without_a_transport_the_model_is_loaded_and_stays() -> None:
    found = build(of_run(weightSync={"transport": "None"}), MODEL, 8000)
    assert "--load-format=auto" in found
    assert not any(argument.startswith("--weight-transfer-config") for argument in found)


def test_sampling_is_not_taken_from_the_models_folder() -> None:
    assert "--generation-config=vllm" in arguments()


def test_a_server_has_one_seed_whatever_it_spans() -> None:
    found = build(spec(gpus=4), MODEL, 8000, seed=17)
    assert [argument for argument in found if argument.startswith("--seed")] == ["--seed=17"]


def test_the_users_arguments_come_last_so_that_they_win() -> None:
    found = arguments("--load-format=auto", "--max-model-len", "4096")
    assert found[-3:] == ["--load-format=auto", "--max-model-len", "4096"]
    assert found.index("--load-format=dummy") < found.index("--load-format=auto")


@pytest.mark.parametrize(
    "argument",
    [
        "--port=9000",
        "--port",
        "--served-model-name=mine",
        "--served_model_name=mine",
        "--serv=mine",
        '--weight-transfer-config={"backend":"nccl"}',
        "--weight-transfer-config.backend=nccl",
        "--logprobs-mode=raw_logprobs",
        "--model=other",
        "--enable-lora",
        "--max-loras=8",
        "--generation-config=auto",
        "--generation_config",
        '--override-generation-config={"top_k": 20}',
        "--override-generation-config.top_k=20",
        "--logits-processors=mine:Processor",
        "--seed=1",
        "--nnodes=2",
        "-n2",
        "-n",
        "--node_rank=1",
        "-r=1",
        "--master-addr=x",
        "--headless",
    ],
)
def test_what_the_run_depends_on_cannot_be_set(argument: str) -> None:
    with pytest.raises(ArgumentsError, match=r"spec\.inference\.args\[1\]: -\S+ can't be set: .* Remove it\."):
        check(spec("--max-model-len=4096", argument))


def test_values_that_look_like_reserved_arguments_are_only_values() -> None:
    check(spec("--chat-template", "port", "--model-impl=vllm", "--model-loader-extra-config={}"))


def test_every_cache_is_below_the_scratch_folder() -> None:
    found = variables(spec(), {}, Path("/gymtrain/scratch"))
    folders = [value for value in found.values() if value.startswith("/")]
    assert folders
    assert all(value.startswith("/gymtrain/scratch/") for value in folders)


def test_variables_of_the_pod_template_win() -> None:
    found = variables(spec(), {"VLLM_CPU_KVCACHE_SPACE": "8"}, Path("/scratch"))
    assert "VLLM_CPU_KVCACHE_SPACE" not in found


def test_cpu_settings_stay_away_from_gpus() -> None:
    found = variables(spec(gpus=1), {}, Path("/scratch"))
    assert not {"VLLM_TARGET_DEVICE", "TORCHDYNAMO_DISABLE", "VLLM_ENABLE_V1_MULTIPROCESSING"} & found.keys()


def test_a_list_of_plugins_gets_ours_too() -> None:
    assert variables(spec(), {"VLLM_PLUGINS": "other"}, Path("/s"))["VLLM_PLUGINS"] == "other,gymtrain"
    assert "VLLM_PLUGINS" not in variables(spec(), {"VLLM_PLUGINS": "gymtrain"}, Path("/s"))


def test_the_routes_for_weights_cannot_be_switched_off() -> None:
    with pytest.raises(ArgumentsError, match="VLLM_SERVER_DEV_MODE"):
        variables(spec(), {"VLLM_SERVER_DEV_MODE": "0"}, Path("/s"))


def test_vllm_sends_spans_where_the_run_is_traced_and_the_users_own_place_wins() -> None:
    ours = "--otlp-traces-endpoint=http://run-gateway-pods:8000/v1/traces"
    own = "--otlp-traces-endpoint=http://mine:4317"
    found = build(spec(own), MODEL, 8000, traces="http://run-gateway-pods:8000/v1/traces")
    assert found.index(ours) < found.index(own)
    assert not [one for one in arguments() if "otlp" in one]


def test_an_image_without_opentelemetry_serves_without_traces(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://run-gateway-pods:8000/v1/traces")
    monkeypatch.setattr(environment, "_TRACING", ("no_such_package.part",))
    assert environment.traces_endpoint() is None
    assert "lacks one of no_such_package.part" in capsys.readouterr().out
    monkeypatch.setattr(environment, "_TRACING", ("json.decoder",))
    assert environment.traces_endpoint() == "http://run-gateway-pods:8000/v1/traces"
