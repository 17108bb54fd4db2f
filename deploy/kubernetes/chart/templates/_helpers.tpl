{{- define "mldebug.labels" -}}
{{ include "mldebug.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end }}

{{- define "mldebug.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/* What a Service may be called, with room for `-coordinator-0`: no dots, a letter first. */}}
{{- define "mldebug.name" -}}
{{- $name := contains .Chart.Name .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name .Chart.Name) }}
{{- $name = .Values.fullnameOverride | default $name | replace "." "-" }}
{{- if regexMatch "^[0-9]" $name }}{{ $name = printf "%s-%s" .Chart.Name $name }}{{ end }}
{{- regexReplaceAll "-+$" ($name | trunc 40) "" }}
{{- end }}

{{- define "mldebug.image" -}}
{{ .Values.image.repository }}{{ with .Values.image.digest }}@{{ . }}{{ else }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{- define "mldebug.hasCoordinator" -}}
{{- if or .Values.cluster.enabled .Values.scheduler.enabled }}yes{{ end }}
{{- end }}

{{- define "mldebug.port" -}}
{{ .Values.agent.listen | splitList ":" | last }}
{{- end }}

{{- define "mldebug.secretName" -}}
{{- if .Values.secret.existing }}{{ .Values.secret.existing }}
{{- else if and .Values.cluster.enabled (not (hasKey .Values.secret.data "cluster.key")) }}
{{- fail "cluster.enabled needs a key: secret.existing, or --set-file secret.data.cluster\\.key=FILE" }}
{{- else if .Values.secret.data }}{{ include "mldebug.name" . }}{{ end }}
{{- end }}

{{/* Settings that probes, ports and volumes are made of: changed in the file alone, the kubelet would kill what it cannot reach. */}}
{{- define "mldebug.refusals" -}}
{{- if and .Values.secret.existing .Values.secret.data }}{{ fail "secret.existing and secret.data: a Secret of yours, or these contents" }}{{ end }}
{{- $ours := dict "agent.listen" "agent.listen" "agent.state_dir" "agent.stateDir" }}
{{- if .Values.cluster.enabled }}
{{- $_ := set $ours "cluster.listen" "cluster.port" }}
{{- if eq (include "mldebug.port" .) (toString .Values.cluster.port) }}{{ fail "cluster.port is the port of agent.listen, too: give it another one" }}{{ end }}
{{- end }}
{{- range $key, $value := $ours }}
{{- $section := get $.Values.config (splitList "." $key | first) | default dict }}
{{- if hasKey $section (splitList "." $key | last) }}{{ fail (printf "config.%s is the chart's to write: set %s" $key $value) }}{{ end }}
{{- end }}
{{- end }}

{{/* The configuration of all agents: what the chart knows, and config from the values over it. */}}
{{- define "mldebug.config" -}}
{{- include "mldebug.refusals" . }}
{{- $own := dict "agent" (dict "state_dir" "/var/lib/mldebug" "listen" .Values.agent.listen) }}
{{- if .Values.cluster.enabled }}
{{- $name := include "mldebug.name" . }}
{{- $peers := list }}
{{- range $at := until (int .Values.coordinator.replicas) }}
{{- $peers = append $peers (printf "%s-coordinator-%d.%s-coordinator.%s.svc" $name $at $name $.Release.Namespace) }}
{{- end }}
{{- $cluster := dict "key_file" "/etc/mldebug/secret/cluster.key" "peers" $peers "listen" (printf "0.0.0.0:%d" (int .Values.cluster.port)) }}
{{- $_ := set $own "cluster" (merge $cluster (dict "networks" .Values.cluster.networks)) }}
{{- end }}
{{- toYaml (mergeOverwrite $own (deepCopy .Values.config)) }}
{{- end }}

{{/* The coordinators' configuration: that of all agents, and whom of them the API server hears. */}}
{{- define "mldebug.coordinatorConfig" -}}
{{- $own := include "mldebug.config" . | fromYaml }}
{{- if .Values.scheduler.enabled }}
{{- $ask := dict "kind" "kubernetes" "only_on" (list (printf "%s-coordinator-0" (include "mldebug.name" .))) }}
{{- if .Values.scheduler.namespaces }}{{ $_ := set $ask "namespaces" .Values.scheduler.namespaces }}{{ end }}
{{- $own = mergeOverwrite $own (dict "schedulers" (dict "kubernetes" $ask)) }}
{{- if .Values.scheduler.expected }}{{ $own = mergeOverwrite $own (dict "jobs" (dict "expected" .Values.scheduler.expected)) }}{{ end }}
{{- end }}
{{- toYaml $own }}
{{- end }}

{{/* What agents and coordinators have in common; the list is (context, name of the configuration in the ConfigMap). */}}
{{- define "mldebug.container" -}}
{{- $ := index . 0 -}}
image: {{ include "mldebug.image" $ | quote }}
imagePullPolicy: {{ $.Values.image.pullPolicy }}
args: [agent, --config, /etc/mldebug/mldebug.yaml]
ports:
  - {name: metrics, containerPort: {{ include "mldebug.port" $ }}}
  {{- if $.Values.cluster.enabled }}
  - {name: peers, containerPort: {{ $.Values.cluster.port }}}
  {{- end }}
# Answered from memory by a thread of its own: a node with hung mounts or GPUs does not have its agent restarted.
livenessProbe:
  httpGet: {path: /healthz, port: metrics}
  initialDelaySeconds: 10
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /readyz, port: metrics}
  periodSeconds: 5
  timeoutSeconds: 5
{{- end }}

{{- define "mldebug.mounts" -}}
- {name: config, mountPath: /etc/mldebug/mldebug.yaml, subPath: {{ index . 1 }}, readOnly: true}
- {name: state, mountPath: /var/lib/mldebug}
- {name: tmp, mountPath: /tmp}
{{- if include "mldebug.secretName" (index . 0) }}
- {name: secret, mountPath: /etc/mldebug/secret, readOnly: true}
{{- end }}
{{- end }}

{{- define "mldebug.volumes" -}}
- name: config
  configMap: {name: {{ include "mldebug.name" . }}}
# py-spy unpacks C libraries of a rank here.
- name: tmp
  emptyDir: {sizeLimit: 256Mi}
{{- with include "mldebug.secretName" . }}
- name: secret
  secret: {secretName: {{ . }}, defaultMode: 0400}
{{- end }}
{{- end }}
