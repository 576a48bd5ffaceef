"""NeMo Gym's sandbox provider `gymtrain`: sandboxes of the run's broker.

```
provider ──► broker    create, wait for a place and a pod, status, close     POST/GET/DELETE /v1/sandboxes
   └───────► daemon    commands and files, in the sandbox's own pod          POST /v1/exec, PUT/GET /v1/file
```
A server's config names it with `sandbox: {gymtrain: {}}`; preflight adds that where an agent asks for a sandbox and the
config has none. Address and token of the broker come from the pod's environment.
"""
