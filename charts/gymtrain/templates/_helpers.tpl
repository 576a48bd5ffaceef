{{/* Name of all objects: gymtrain-operator for a release called gymtrain. */}}
{{- define "gymtrain.name" -}}
{{- if contains "gymtrain" .Release.Name -}}
{{ .Release.Name | trunc 54 | trimSuffix "-" }}-operator
{{- else -}}
{{ .Release.Name | trunc 45 | trimSuffix "-" }}-gymtrain-operator
{{- end -}}
{{- end -}}

{{- define "gymtrain.serviceAccount" -}}
{{ .Values.serviceAccount.name | default (.Values.serviceAccount.create | ternary (include "gymtrain.name" .) "default") }}
{{- end -}}

{{/* Runs' NetworkPolicies admit pods with the first two of these labels. */}}
{{- define "gymtrain.selectorLabels" -}}
app.kubernetes.io/name: gymtrain
app.kubernetes.io/component: operator
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- define "gymtrain.labels" -}}
{{ include "gymtrain.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name (.Chart.Version | replace "+" "_") | quote }}
{{- end -}}

{{/* The full name of an image: (list $ NAME TAG). A name with a tag or digest keeps it. No image is published under
gymtrain's names, so a name without a registry is refused; the tag `dev` means the development cluster's own. */}}
{{- define "gymtrain.image" -}}
{{- $root := index . 0 -}}
{{- $image := index . 1 -}}
{{- if not (regexMatch "(:[^/]+|@[^/]+)$" $image) -}}
{{- $image = printf "%s:%s" $image (index . 2 | default $root.Chart.AppVersion) -}}
{{- end -}}
{{- if not (or $root.Values.imageRegistry (regexMatch "^(localhost|[^/]*[.:][^/]*)/" $image) (hasSuffix ":dev" $image)) -}}
{{- fail (printf "the image %s names no registry, and gymtrain publishes none: build and push the images (images/README.md), then name their registry, such as --set imageRegistry=registry.example.com/ --set image.tag=TAG --set images.tag=TAG (docker.io/ if the nodes already hold images of these names)" $image) -}}
{{- end -}}
{{ $root.Values.imageRegistry }}{{ $image }}
{{- end -}}

{{/* namespaceSelector as kubectl writes selectors: a=b,c in (d,e). Empty: there is none. */}}
{{- define "gymtrain.namespaceSelector" -}}
{{- $parts := list -}}
{{- range $key, $value := (.Values.namespaceSelector).matchLabels -}}
{{- $parts = append $parts (printf "%s=%s" $key $value) -}}
{{- end -}}
{{- range (.Values.namespaceSelector).matchExpressions -}}
{{- if eq .operator "Exists" -}}
{{- $parts = append $parts .key -}}
{{- else if eq .operator "DoesNotExist" -}}
{{- $parts = append $parts (printf "!%s" .key) -}}
{{- else -}}
{{- $parts = append $parts (printf "%s %s (%s)" .key (lower .operator) (join "," (required "namespaceSelector: In and NotIn need values" .values))) -}}
{{- end -}}
{{- end -}}
{{- if and $parts .Values.watchNamespaces -}}
{{- fail "watchNamespaces and namespaceSelector: set one of them" -}}
{{- end -}}
{{- join "," $parts -}}
{{- end -}}

{{/* An image of the runs' pods: (list $ "gym"). */}}
{{- define "gymtrain.runImage" -}}
{{- $root := index . 0 -}}
{{- include "gymtrain.image" (list $root (index $root.Values.images (index . 1)) $root.Values.images.tag) -}}
{{- end -}}

{{/* What the operator may do with runs and their objects. */}}
{{- define "gymtrain.rules" -}}
- apiGroups: [gymtrain.dev]
  resources: [gymtrainingruns]
  verbs: [get, list, watch, patch, delete] # patch: annotation gymtrain.dev/record; delete: ttlSecondsAfterFinished
- apiGroups: [gymtrain.dev]
  resources: [gymtrainingruns/status]
  verbs: [update]
# What a namespace has for all of its runs: its defaults, and whether its quotas require limits.
- apiGroups: [gymtrain.dev]
  resources: [gymtrainingdefaults]
  verbs: [get]
- apiGroups: [""]
  resources: [resourcequotas]
  verbs: [list]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [pods/log]
  verbs: [get]
- apiGroups: [""]
  resources: [services, configmaps, persistentvolumeclaims]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [events]
  verbs: [create, patch]
- apiGroups: [apps]
  resources: [deployments]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [batch]
  resources: [jobs]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, create, delete] # delete: an earlier run's of the name
# For a run with sandboxes: its broker's token, which the operator creates and can't read, and the broker's own rights,
# which are a part of those on pods above.
- apiGroups: [""]
  resources: [secrets, serviceaccounts]
  verbs: [create]
- apiGroups: [rbac.authorization.k8s.io]
  resources: [roles, rolebindings]
  verbs: [create]
# For sandboxes that agent-sandbox makes (spec.sandboxes.backend): the broker's rights, and those to check whether its
# controller answers and to clean up.
- apiGroups: [extensions.agents.x-k8s.io]
  resources: [sandboxclaims, sandboxwarmpools, sandboxtemplates]
  verbs: [get, list, watch, create, patch, delete]
# For vLLM servers of several pods (spec.inference.nodes), which LeaderWorkerSet (LWS) makes.
- apiGroups: [leaderworkerset.x-k8s.io]
  resources: [leaderworkersets]
  verbs: [get, list, create, patch, delete]
{{- if (.Values.gangScheduling).schedulerName }}
# For pods that are scheduled together.
- apiGroups: [scheduling.x-k8s.io]
  resources: [podgroups]
  verbs: [get, list, create, patch, delete]
{{- end }}
{{- if (.Values.kueue).enabled }}
# For runs in queues of Kueue: their Workloads, whose quota whoever stops the pods has to give back in the status.
- apiGroups: [kueue.x-k8s.io]
  resources: [workloads]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [kueue.x-k8s.io]
  resources: [workloads/status]
  verbs: [patch]
{{- end }}
{{- end -}}

{{/* The times of the Lease as flags: short ones where another replica stands by. */}}
{{- define "gymtrain.leaseFlags" -}}
{{- $standby := gt (int .Values.replicas) 1 -}}
{{- $lease := .Values.lease | default dict -}}
{{- $duration := $lease.durationSeconds | default ($standby | ternary 6 30) -}}
{{- $deadline := $lease.renewDeadlineSeconds | default ($standby | ternary 4 20) -}}
{{- $retry := $lease.retryPeriodSeconds | default ($standby | ternary 1 2) -}}
{{- if not (and (gt (float64 $duration) (float64 $deadline)) (gt (float64 $deadline) (float64 $retry))) -}}
{{- fail (printf "lease.durationSeconds (%v) must be more than lease.renewDeadlineSeconds (%v), and that more than lease.retryPeriodSeconds (%v); values that are not set depend on replicas" $duration $deadline $retry) -}}
{{- end -}}
- --leader-elect-lease-duration={{ $duration }}
- --leader-elect-renew-deadline={{ $deadline }}
- --leader-elect-retry-period={{ $retry }}
{{- end -}}
