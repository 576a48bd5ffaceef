"""vLLM as a run starts it, at one address: `python3 -m benchmarks.gpu.chain.server ADDRESS`.

Servers of a run have the same port, each in a pod with an address of its own. Here they are on one machine.
"""

import sys
from unittest import mock

if __name__ == "__main__":  # vLLM's engine is another process, which imports this module again
    from gymtrain_vllm import serve

    with mock.patch("gymtrain_vllm.arguments.any_address", return_value=sys.argv[1]):
        serve.main()
