module gymtrain.dev/dev/peers

go 1.26.0

tool (
	sigs.k8s.io/agent-sandbox/cmd/agent-sandbox-controller
	sigs.k8s.io/kwok/cmd/kwok
)

require (
	sigs.k8s.io/agent-sandbox v1.0.3
	sigs.k8s.io/kwok v0.8.0
)
