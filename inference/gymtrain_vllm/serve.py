"""Starts vLLM's OpenAI server for a run: `python -m gymtrain_vllm.serve`.

Reads the run from /etc/gymtrain/run/run.json. This process becomes the server; there is no shell in between. In a pod
of a server on several nodes that isn't the leader, it becomes the parent of this node's workers (`pod_group`).
"""

# vLLM's engine process is a new one (not forked) and imports this module again, so that little may be imported up
# here. Both processes import some 8,000 modules: collecting garbage in between costs them 2 s each.
import gc
import sys

gc.set_threshold(50_000, 20, 100)


def main() -> None:
    """Never returns normally: vLLM ends the process.

    Raises:
        SystemExit: the run's arguments are wrong, or vLLM ended.
    """
    import os
    import runpy
    import secrets
    from pathlib import Path

    from gymtrain_api.runs import parse_run_config
    from gymtrain_vllm import (
        arguments,
        compile_cache,
        control_guard,
        environment,
        file_cache,
        model_class_cache,
        pod_group,
        ready,
        server_exit,
        vllm_internals,
    )
    from gymtrain_vllm.errors import ArgumentsError, GroupError, TokenError

    run = parse_run_config(environment.run_config().read_bytes())
    # Pods of a Deployment are alike: with vLLM's own default they would all draw the same rollouts, and after a
    # restart the same again.
    seed, port, member = secrets.randbits(31), environment.port(), None
    try:
        arguments.check(run.spec)
        if run.spec.inference.nodes > 1:
            own = pod_group.place()
            nodes = run.spec.inference.nodes
            start = pod_group.join(own) if own.index else pod_group.lead(own, seed, nodes)
            seed, member = start.seed, arguments.Member(own.index, start.leader)
        argv = arguments.build(
            run.spec, environment.model(), port, seed=seed, member=member, traces=environment.traces_endpoint()
        )
        if (token_file := environment.run_token_file()) is not None:
            control_guard.read_token(token_file)  # of a server without one nobody could change the weights
            argv.append(f"--middleware={control_guard.MIDDLEWARE}")
        os.environ.update(arguments.variables(run.spec, os.environ, environment.scratch()))
    except (ArgumentsError, GroupError, TokenError) as error:
        sys.exit(f"gymtrain: {error}")
    works = bool(member and member.index)
    if run.spec.inference.compile_cache:
        cache = compile_cache.of_server(environment.compile_cache(), argv, environment.model(), os.environ)
        cache.load()
        compile_cache.keep_in_background(cache, port, member.leader if member and works else ready.THIS_POD)
    for name in ("HOME", "TMPDIR", "VLLM_CACHE_ROOT"):
        Path(os.environ[name]).mkdir(parents=True, exist_ok=True)
    ready.remove_note()
    file_cache.sweep()
    model_class_cache.provide(Path(os.environ["VLLM_CACHE_ROOT"]))
    print(f"gymtrain: {vllm_internals.SERVER} {' '.join(argv)}", flush=True)
    if works:
        vllm_internals.run_workers(argv)
        print("gymtrain: a worker of vLLM has ended, so its server can't go on", flush=True)
        sys.exit(server_exit.ExitCode.WORKER_GONE)
    server_exit.watch_engine(port)
    if arguments.api_servers(run.spec.inference.args):
        vllm_internals.run_api_servers(argv)
        return
    sys.argv = [vllm_internals.SERVER, *argv]
    # __main__ stays this module, so that the engine process imports this one and not the whole server.
    runpy.run_module(vllm_internals.SERVER, run_name="__main__")


if __name__ == "__main__":
    main()
