{{- define "graphweft.name" -}}
{{ .Values.nameOverride | default .Chart.Name }}
{{- end }}

{{/* The beginning of all names. 40 characters leave room for the role and what Kubernetes appends. */}}
{{- define "graphweft.fullname" -}}
{{- $name := include "graphweft.name" . -}}
{{- if contains $name .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "graphweft.version" -}}
{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* Labels that select the pods of a role. Call it with root and role. */}}
{{- define "graphweft.selector" -}}
app.kubernetes.io/name: {{ include "graphweft.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .role }}
{{- end }}

{{- define "graphweft.labels" -}}
{{ include "graphweft.selector" . }}
app.kubernetes.io/version: {{ include "graphweft.version" .root | trunc 63 | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" | trunc 63 }}
{{- end }}

{{/* What each role runs and needs. `rules` are mounted with the ontologies, which the gateway knows messages by. `port` is
     that of its service; `grace` is how long it may take to end. */}}
{{- define "graphweft.roles" -}}
worker: {run: mutation, rules: true, graph: true, log: true, grace: 30}
responder: {run: injection, rules: true, graph: true, log: true, grace: 30}
memory: {run: memory, rules: true, graph: true, log: true, grace: 30}
archive: {run: archive, log: true, grace: 30}
gateway: {run: gateway, port: 8765, tokens: GRAPHWEFT_GATEWAY_TOKENS, rules: true, grace: 30}
console: {run: console, port: 8766, tokens: GRAPHWEFT_CONSOLE_TOKENS, rules: true, graph: true, log: true, grace: 30}
{{- end }}

{{- define "graphweft.image" -}}
{{- if .Values.image.digest }}{{ printf "%s@%s" .Values.image.repository .Values.image.digest }}{{ else }}{{ printf "%s:%s" .Values.image.repository (include "graphweft.version" .) }}{{ end }}
{{- end }}

{{- define "graphweft.ownServer" -}}
redis://{{ include "graphweft.fullname" . }}-falkordb:6379
{{- end }}

{{- define "graphweft.serviceAccount" -}}
{{ .Values.serviceAccount.name | default (include "graphweft.fullname" .) }}
{{- end }}

{{/* A setting as text: a number keeps its digits, which Helm would write as 1e+06. */}}
{{- define "graphweft.text" -}}
{{ if kindIs "string" . }}{{ . }}{{ else }}{{ toJson . }}{{ end }}
{{- end }}

{{/* The settings of a role as texts by name, as YAML. Not by `merge`, to which false and 0 are nothing. */}}
{{- define "graphweft.settings" -}}
{{- $found := dict -}}
{{- range $settings := list .root.Values.settings (get .root.Values .role).settings -}}
{{- range $name, $value := $settings }}{{ $_ := set $found $name (include "graphweft.text" $value) }}{{ end -}}
{{- end -}}
{{ toYaml $found }}
{{- end }}

{{/* Variables by name, as YAML. Call it with root, role (a name) and facts (its entry of graphweft.roles). */}}
{{- define "graphweft.variables" -}}
{{- $values := .root.Values -}}
{{- $found := dict "GRAPHWEFT_LOG_FORMAT" "json" "GRAPHWEFT_PROBE_ADDRESS" "0.0.0.0:8080" -}}
{{- range $name, $value := include "graphweft.settings" . | fromYaml -}}
{{- $_ := set $found (printf "GRAPHWEFT_%s" (upper $name)) $value -}}
{{- end -}}
{{- if $values.metrics.enabled }}{{ $_ := set $found "GRAPHWEFT_METRICS" "true" }}{{ end -}}
{{- if $values.appPolicies }}{{ $_ := set $found "GRAPHWEFT_APPS" "/etc/graphweft/apps/apps.yaml" }}{{ end -}}
{{- $_ := set $found "GRAPHWEFT_BUS_URL" ($values.bus.url | default (include "graphweft.ownServer" .root)) -}}
{{- with $values.bus.user }}{{ $_ := set $found "GRAPHWEFT_BUS_USER" . }}{{ end -}}
{{- with $values.bus.sasl }}{{ $_ := set $found "GRAPHWEFT_BUS_SASL" . }}{{ end -}}
{{- if $values.bus.existingSecret }}{{ $_ := set $found "GRAPHWEFT_BUS_PASSWORD_FILE" "/etc/graphweft/bus/password" }}{{ end -}}
{{- if $values.bus.tls.existingSecret -}}
{{- $_ := set $found "GRAPHWEFT_BUS_CA" "/etc/graphweft/bus-tls/ca.crt" -}}
{{- if $values.bus.tls.clientCertificate -}}
{{- $_ := set $found "GRAPHWEFT_BUS_CERT" "/etc/graphweft/bus-tls/tls.crt" -}}
{{- $_ := set $found "GRAPHWEFT_BUS_CERT_KEY" "/etc/graphweft/bus-tls/tls.key" -}}
{{- end -}}
{{- end -}}
{{- if .facts.rules }}{{ $_ := set $found "GRAPHWEFT_RULES" "/rules" }}{{ end -}}
{{- if .facts.graph -}}
{{- $_ := set $found "GRAPHWEFT_GRAPH_URL" ($values.graph.url | default (include "graphweft.ownServer" .root)) -}}
{{- with $values.graph.user }}{{ $_ := set $found "GRAPHWEFT_GRAPH_USER" . }}{{ end -}}
{{- if $values.graph.existingSecret }}{{ $_ := set $found "GRAPHWEFT_GRAPH_PASSWORD_FILE" "/etc/graphweft/graph/password" }}{{ end -}}
{{- if $values.graph.tls.existingSecret }}{{ $_ := set $found "GRAPHWEFT_GRAPH_CA" "/etc/graphweft/graph-tls/ca.crt" }}{{ end -}}
{{- range $model := list "embedder" "extractor" "summariser" "judge" -}}
{{- $it := get $values $model -}}
{{- $_ := set $found (printf "GRAPHWEFT_%s" (upper $model)) $it.name -}}
{{- with $it.url }}{{ $_ := set $found (printf "GRAPHWEFT_%s_URL" (upper $model)) . }}{{ end -}}
{{- if $it.existingSecret }}{{ $_ := set $found (printf "GRAPHWEFT_%s_API_KEY_FILE" (upper $model)) (printf "/etc/graphweft/%s/api-key" $model) }}{{ end -}}
{{- end -}}
{{- end -}}
{{- if .facts.log -}}
{{- if $values.archive.existingClaim }}{{ $_ := set $found "GRAPHWEFT_ARCHIVE_URL" "/archive" }}{{ else if $values.archive.url }}{{ $_ := set $found "GRAPHWEFT_ARCHIVE_URL" $values.archive.url }}{{ end -}}
{{- if $values.signing.existingSecret }}{{ $_ := set $found "GRAPHWEFT_SIGNING_KEYS" "/etc/graphweft/signing/keys.yaml" }}{{ end -}}
{{- end -}}
{{- with .facts.tokens }}{{ $_ := set $found . "/etc/graphweft/tokens/tokens.yaml" }}{{ end -}}
{{- if (get $values .role).signingSecret }}{{ $_ := set $found "GRAPHWEFT_SIGNING_KEY_FILE" "/etc/graphweft/signing-key/signing-key" }}{{ end -}}
{{ toYaml $found }}
{{- end }}

{{/* Secrets that a role mounts below /etc/graphweft, as a map of folder to Secret. */}}
{{- define "graphweft.secrets" -}}
{{- $values := .root.Values -}}
{{- $found := dict -}}
{{- with $values.bus.existingSecret }}{{ $_ := set $found "bus" . }}{{ end -}}
{{- with $values.bus.tls.existingSecret }}{{ $_ := set $found "bus-tls" . }}{{ end -}}
{{- if .facts.graph -}}
{{- with $values.graph.existingSecret }}{{ $_ := set $found "graph" . }}{{ end -}}
{{- with $values.graph.tls.existingSecret }}{{ $_ := set $found "graph-tls" . }}{{ end -}}
{{- range $model := list "embedder" "extractor" "summariser" "judge" -}}
{{- with (get $values $model).existingSecret }}{{ $_ := set $found $model . }}{{ end -}}
{{- end -}}
{{- end -}}
{{- if .facts.log }}{{ with $values.signing.existingSecret }}{{ $_ := set $found "signing" . }}{{ end }}{{ end -}}
{{- if .facts.tokens }}{{ $_ := set $found "tokens" (get $values .role).existingSecret }}{{ end -}}
{{- with (get $values .role).signingSecret }}{{ $_ := set $found "signing-key" . }}{{ end -}}
{{ toYaml $found }}
{{- end }}

{{/* The spec of a pod. Call it with root, role, facts, args, restart, and probes (whether it answers them). */}}
{{- define "graphweft.pod" -}}
{{- $values := .root.Values -}}
{{- $role := get $values .role -}}
{{- $secrets := include "graphweft.secrets" . | fromYaml -}}
serviceAccountName: {{ include "graphweft.serviceAccount" .root }}
automountServiceAccountToken: false
# Variables for each Service of the namespace could be taken for settings.
enableServiceLinks: false
terminationGracePeriodSeconds: {{ .facts.grace }}
restartPolicy: {{ .restart }}
{{- with $values.image.pullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $role.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile: {type: RuntimeDefault}
containers:
  - name: {{ .role }}
    image: {{ include "graphweft.image" .root | quote }}
    imagePullPolicy: {{ $values.image.pullPolicy }}
    args: {{ toJson .args }}
    env:
      {{- range $name, $value := include "graphweft.variables" . | fromYaml }}
      - {name: {{ $name }}, value: {{ $value | quote }}}
      {{- end }}
      {{- range concat $values.env $role.env }}
      - {{ toJson . }}
      {{- end }}
    securityContext:
      allowPrivilegeEscalation: false
      readOnlyRootFilesystem: true
      capabilities: {drop: [ALL]}
    {{- with $role.resources }}
    resources:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    {{- if .probes }}
    ports:
      - {name: probes, containerPort: 8080}
      {{- with .facts.port }}
      - {name: http, containerPort: {{ . }}}
      {{- end }}
    # Loading the rules may take this long: 60 x 5 s.
    startupProbe:
      httpGet: {path: /startupz, port: probes}
      periodSeconds: 5
      timeoutSeconds: 3
      failureThreshold: 60
    # Asks no server: a restart would not bring one back.
    livenessProbe:
      httpGet: {path: /livez, port: probes}
      periodSeconds: 15
      timeoutSeconds: 10
      failureThreshold: 3
    readinessProbe:
      httpGet: {path: /readyz, port: probes}
      periodSeconds: 5
      timeoutSeconds: 3
    {{- end }}
    volumeMounts:
      - {name: tmp, mountPath: /tmp}
      {{- if .facts.rules }}
      {{- if $values.rules.files }}
      # One by one: a key of a ConfigMap holds no slash, and so workflows have regular folders.
      {{- range $path, $_ := $values.rules.files }}
      - {name: rules, mountPath: {{ printf "/rules/%s" $path | quote }}, subPath: {{ sha256sum $path }}, readOnly: true}
      {{- end }}
      {{- else }}
      - {name: rules, mountPath: /rules, readOnly: true}
      {{- end }}
      {{- if $values.ontologies }}
      # They are looked for beside the folder of rules.
      - {name: ontologies, mountPath: /ontologies, readOnly: true}
      {{- end }}
      {{- end }}
      {{- if and .facts.log $values.archive.existingClaim }}
      - {name: archive, mountPath: /archive}
      {{- end }}
      {{- if $values.appPolicies }}
      - {name: apps, mountPath: /etc/graphweft/apps, readOnly: true}
      {{- end }}
      {{- range $folder, $_ := $secrets }}
      - {name: {{ $folder }}, mountPath: /etc/graphweft/{{ $folder }}, readOnly: true}
      {{- end }}
volumes:
  - name: tmp
    emptyDir: {sizeLimit: 256Mi}
  {{- if .facts.rules }}
  - name: rules
    {{- if $values.rules.files }}
    configMap: {name: {{ include "graphweft.fullname" .root }}-rules}
    {{- else }}
    emptyDir: {}
    {{- end }}
  {{- if $values.ontologies }}
  - name: ontologies
    configMap: {name: {{ include "graphweft.fullname" .root }}-ontologies}
  {{- end }}
  {{- end }}
  {{- if and .facts.log $values.archive.existingClaim }}
  - name: archive
    persistentVolumeClaim: {claimName: {{ $values.archive.existingClaim }}}
  {{- end }}
  {{- if $values.appPolicies }}
  - name: apps
    configMap: {name: {{ include "graphweft.fullname" .root }}-apps}
  {{- end }}
  {{- range $folder, $secret := $secrets }}
  - name: {{ $folder }}
    secret: {secretName: {{ $secret }}, defaultMode: 0440}
  {{- end }}
{{- with $role.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $role.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- if .probes }}
topologySpreadConstraints:
  {{- range $key := list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
  - maxSkew: 1
    topologyKey: {{ $key }}
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "graphweft.selector" $ | nindent 8 }}
    matchLabelKeys: [pod-template-hash]
  {{- end }}
{{- end }}
{{- end }}
