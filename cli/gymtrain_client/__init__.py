"""gymtrain from Python: submit a run, wait for it, read its metrics.

```python
from gymtrain_client import Client

run = Client(namespace="lab").submit("examples/quickstart.yaml")
run.wait(timeout=3600)
run.metrics().reward.plot()
```

Kubernetes' own client finds the cluster, as kubectl does. It is imported when the first `Client` is made: it takes a
second or more.
"""

from gymtrain_client.client import Client, Run
from gymtrain_client.errors import ClientError

__all__ = ["Client", "ClientError", "Run"]
