{{- define "graphweft.installed" -}}
version: {{ include "graphweft.version" . | quote }}
graphTemplate: {{ .Values.settings.graph_template | default "mozaiks_{app_id}" | quote }}
{{- end }}

{{/* What forbids an upgrade from what is installed (`before`), one fault in a line. */}}
{{- define "graphweft.upgradeFaults" -}}
{{- $now := include "graphweft.installed" .root | fromYaml -}}
{{- $number := "^v?[0-9]+\\.[0-9]+\\..*$" -}}
{{- $from := .root.Values.upgrade.from -}}
{{- if and (regexMatch $number .before.version) (regexMatch $number $now.version) -}}
{{- $was := regexReplaceAll "^v?([0-9]+\\.[0-9]+)\\..*$" .before.version "${1}" -}}
{{- $will := regexReplaceAll "^v?([0-9]+\\.[0-9]+)\\..*$" $now.version "${1}" -}}
{{- if and (ne $was $will) (ne $was $from) }}
upgrade.from: {{ .before.version }} is installed, and {{ $now.version }} is another minor version, which may change formats; read its changelog, and docs/kubernetes.md for the order of roles, then set upgrade.from to {{ $was | quote }}
{{- end -}}
{{- end -}}
{{- if ne .before.graphTemplate $now.graphTemplate }}
settings.graph_template: graphs are named by {{ .before.graphTemplate | quote }} now, and {{ $now.graphTemplate | quote }} would leave them behind; keep it, or install another release and rebuild the graphs there
{{- end -}}
{{- end }}

{{/* All faults of the values that a schema cannot say, one in a line: where, what, and what to do. */}}
{{- define "graphweft.faults" -}}
{{- $values := .Values -}}
{{- if not $values.image.repository }}
image.repository: no image is named; set it to the registry and name that your nodes can pull, such as registry.example/graphweft
{{- end -}}
{{- if and (eq (include "graphweft.version" .) "0.0.0") (not $values.image.digest) }}
image.tag: this chart is from a source tree and has no version; set image.tag or image.digest to that of your image
{{- end -}}
{{- range $server := list "bus" "graph" -}}
{{- $it := get $values $server -}}
{{- if and (not $it.url) (not $values.falkordb.enabled) }}
{{ $server }}.url: no server is named; set it to the URL of yours, or falkordb.enabled to true to try graphweft
{{- end -}}
{{- if and $it.url $values.falkordb.enabled }}
{{ $server }}.url: falkordb.enabled brings a server of its own; leave out one of the two
{{- end -}}
{{- if contains "@" $it.url }}
{{ $server }}.url: the URL holds a login, which would be readable in the Deployment; set {{ $server }}.user, and put the password into a Secret that {{ $server }}.existingSecret names
{{- end -}}
{{- if and $it.user (not $it.existingSecret) }}
{{ $server }}.user: there is no password for {{ $it.user | quote }}; put it into a Secret that {{ $server }}.existingSecret names
{{- end -}}
{{- if and $it.tls.existingSecret (not (regexMatch "^(rediss|rediss\\+sentinel|kafka\\+ssl|neo4j\\+s|bolt\\+s)://" $it.url)) }}
{{ $server }}.tls.existingSecret: {{ $it.url | default "the server of falkordb.enabled" | quote }} is no URL with TLS; begin it with {{ ternary "rediss:// or kafka+ssl://" "rediss://, neo4j+s:// or bolt+s://" (eq $server "bus") }}, or leave out the Secret
{{- end -}}
{{- end -}}
{{- if and $values.bus.tls.clientCertificate (not $values.bus.tls.existingSecret) }}
bus.tls.clientCertificate: there is no Secret with a certificate; set bus.tls.existingSecret
{{- end -}}
{{- if and $values.bus.sasl (not (hasPrefix "kafka" $values.bus.url)) }}
bus.sasl: only Kafka has it, and bus.url is {{ $values.bus.url | quote }}; leave it out
{{- end -}}
{{- range $role := list "gateway" "console" -}}
{{- $it := get $values $role -}}
{{- if and $it.enabled (not $it.existingSecret) }}
{{ $role }}.existingSecret: the {{ $role }} needs tokens; make them with `graphweft token new`, put the file tokens.yaml into a Secret, and name it here
{{- end -}}
{{- end -}}
{{- if and $values.archive.url $values.archive.existingClaim }}
archive.existingClaim: archive.url names another place for the archive; leave out one of the two
{{- end -}}
{{- if and $values.archive.enabled (not $values.archive.url) (not $values.archive.existingClaim) }}
archive.enabled: the archive has no place; set archive.url or archive.existingClaim
{{- end -}}
{{- $jobs := include "graphweft.settings" (dict "root" . "role" "memory") | fromYaml -}}
{{- $work := or (ne $values.embedder.name "none") (ne $values.extractor.name "none") (ne $values.judge.name "none") -}}
{{- range $name := list "memory_summarise_after" "memory_keep_days" "memory_keep_count" }}{{ $work = or $work (ne (get $jobs $name | default "0") "0") }}{{ end -}}
{{- if and $values.memory.enabled (not $work) }}
memory.enabled: the memory worker would have nothing to do and not start; set embedder.name, extractor.name, judge.name, settings.memory_summarise_after, settings.memory_keep_days or settings.memory_keep_count
{{- end -}}
{{- if and (ne $values.extractor.name "none") (not $values.memory.enabled) }}
extractor.name: episodes are read by the memory worker, which is off; set memory.enabled to true
{{- end -}}
{{- if and (ne $values.judge.name "none") (not $values.memory.enabled) }}
judge.name: statements are compared by the memory worker, which is off; set memory.enabled to true
{{- end -}}
{{- with $values.worker.autoscaling -}}
{{- if .enabled -}}
{{- if and (not .prometheusUrl) (not .kafkaServers) }}
worker.autoscaling: nothing says the lag; set prometheusUrl, or kafkaServers if the bus is Kafka
{{- end -}}
{{- if and .prometheusUrl .kafkaServers }}
worker.autoscaling: prometheusUrl and kafkaServers both say the lag; leave out one of them
{{- end -}}
{{- if and .kafkaServers (not (hasPrefix "kafka" $values.bus.url)) }}
worker.autoscaling.kafkaServers: bus.url is {{ $values.bus.url | quote }}, no Kafka; use prometheusUrl
{{- end -}}
{{- if and .prometheusUrl (not $values.metrics.enabled) }}
worker.autoscaling.prometheusUrl: workers count nothing, so Prometheus knows no lag; set metrics.enabled to true
{{- end -}}
{{- $partitions := int ($values.settings.partitions | default 64) -}}
{{- if gt (int .max) $partitions }}
worker.autoscaling.max: {{ .max }} workers share {{ $partitions }} partitions, so some would do nothing; set at most {{ $partitions }}, or settings.partitions to the number of your bus
{{- end -}}
{{- end -}}
{{- end -}}
{{- range $role := list "worker" "responder" "gateway" -}}
{{- $it := (get $values $role).autoscaling -}}
{{- if and $it.enabled (gt (int $it.min) (int $it.max)) }}
{{ $role }}.autoscaling.min: {{ $it.min }} is more than max, {{ $it.max }}; set it to at most max
{{- end -}}
{{- if and $it.enabled (hasKey $it "cpu") (not (dig "requests" "cpu" "" (get $values $role).resources)) }}
{{ $role }}.autoscaling.cpu: a share of the requested processor time needs a request; set {{ $role }}.resources.requests.cpu
{{- end -}}
{{- end -}}
{{- if and (or $values.metrics.serviceMonitor $values.metrics.alerts) (not $values.metrics.enabled) }}
metrics.enabled: serviceMonitor and alerts need the metrics that it turns off; set it to true, or both of them to false
{{- end -}}
{{- if and $values.rules.files (not (regexMatch "(^|\n)[^/\n]+/graph_injection\\.yaml(\n|$)" (keys $values.rules.files | join "\n"))) }}
rules.files: none of the paths is WORKFLOW/graph_injection.yaml, so there are no rules to push; begin each path with the name of its workflow
{{- end -}}
{{- if gt (len (toJson $values.rules.files)) 900000 }}
rules.files: they have {{ len (toJson $values.rules.files) }} bytes, and a ConfigMap holds 1 MiB; leave them out, and run `graphweft rules push` in your CI
{{- end -}}
{{- if gt (len (toJson $values.ontologies)) 900000 }}
ontologies: they have {{ len (toJson $values.ontologies) }} bytes, and a ConfigMap holds 1 MiB; put them into an image of yours, at /ontologies
{{- end -}}
{{- if and $values.serviceAccount.name $values.serviceAccount.annotations }}
serviceAccount.annotations: the chart does not change the account {{ $values.serviceAccount.name | quote }}, which you made; annotate it yourself
{{- end -}}
{{- range $where, $env := dict "env" $values.env "worker.env" $values.worker.env "responder.env" $values.responder.env "memory.env" $values.memory.env "archive.env" $values.archive.env "gateway.env" $values.gateway.env "console.env" $values.console.env -}}
{{- range $env -}}
{{- if hasPrefix "GRAPHWEFT_" (upper .name) }}
{{ $where }}: {{ .name }} is a setting of graphweft, which this would hide from the chart; use a value of the chart, or settings
{{- end -}}
{{- end -}}
{{- end -}}
{{- if .Release.IsUpgrade -}}
{{- with lookup "v1" "ConfigMap" .Release.Namespace (printf "%s-installed" (include "graphweft.fullname" .)) -}}
{{- include "graphweft.upgradeFaults" (dict "root" $ "before" .data) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{- define "graphweft.validate" -}}
{{- with include "graphweft.faults" . | trim -}}
{{- fail (printf "\n\nThe values do not fit together:\n\n- %s\n" (join "\n- " (splitList "\n" .))) -}}
{{- end -}}
{{- end }}
