{{/* The base of all names: "clew" for a release called clew. */}}
{{- define "clew.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Name of cluster-wide objects; it differs from that of a release in another namespace. */}}
{{- define "clew.clusterName" -}}
{{- $full := include "clew.fullname" . -}}
{{- if eq .Release.Namespace (printf "%s-system" $full) -}}
{{- $full -}}
{{- else -}}
{{- printf "%s-%s" $full .Release.Namespace | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "clew.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Labels with which Services and policies select a component's pods: (list $ "server"). */}}
{{- define "clew.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ default $root.Chart.Name $root.Values.nameOverride }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{/* metadata of a component's object: (list $ "server" "suffix of the name"). */}}
{{- define "clew.metadata" -}}
{{- $root := index . 0 -}}
name: {{ include "clew.fullname" $root }}-{{ index . 2 }}
namespace: {{ $root.Release.Namespace }}
labels:
  {{- include "clew.labels" $root | nindent 2 }}
  app.kubernetes.io/component: {{ index . 1 }}
{{- with $root.Values.commonAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "clew.image" -}}
{{- $tag := .Values.image.tag | default .Chart.AppVersion -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ $tag }}
{{- end -}}
{{- end -}}

{{- define "clew.postgresImage" -}}
{{- with .Values.postgres.image -}}
{{- if .digest -}}{{ .repository }}@{{ .digest }}{{- else -}}{{ .repository }}:{{ .tag }}{{- end -}}
{{- end -}}
{{- end -}}

{{/* The API version of the policy that writes the requester; empty for none. */}}
{{- define "clew.requesters" -}}
{{- $group := "admissionregistration.k8s.io" -}}
{{- $mode := .Values.admission.requesters -}}
{{- if not .Values.admission.install -}}
{{- else if eq $mode "V1" -}}{{ $group }}/v1
{{- else if eq $mode "V1Beta1" -}}{{ $group }}/v1beta1
{{- else if eq $mode "Detect" -}}
{{- range list "v1beta1" "v1" -}}
{{- if $.Capabilities.APIVersions.Has (printf "%s/%s/MutatingAdmissionPolicy" $group .) -}}{{- $mode = . -}}{{- end -}}
{{- end -}}
{{- if ne $mode "Detect" -}}{{ $group }}/{{ $mode }}{{- end -}}
{{- end -}}
{{- end -}}

{{/* Where a pod may run: (list $ component's values). */}}
{{- define "clew.placement" -}}
{{- $root := (index . 0).Values -}}
{{- $own := index . 1 -}}
{{- with $root.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $own.priorityClassName | default $root.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with $own.nodeSelector | default $root.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $own.tolerations | default $root.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $own.affinity | default $root.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "clew.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: {{ .Values.podSecurity.runAsUser }}
runAsGroup: {{ .Values.podSecurity.runAsGroup }}
fsGroup: {{ .Values.podSecurity.runAsGroup }}
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  {{- toYaml .Values.podSecurity.seccompProfile | nindent 2 }}
{{- end -}}

{{- define "clew.containerSecurityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{- define "clew.probes" -}}
startupProbe:
  httpGet: {path: /healthz, port: health}
  periodSeconds: 1
  failureThreshold: 120
livenessProbe:
  httpGet: {path: /healthz, port: health}
  periodSeconds: 10
  failureThreshold: 6
  timeoutSeconds: 5
readinessProbe:
  httpGet: {path: /readyz, port: health}
  periodSeconds: 3
  failureThreshold: 3
  timeoutSeconds: 5
{{- end -}}

{{/* Names of the Secrets that hold certificates. */}}
{{- define "clew.tlsSecret" -}}
{{- $root := index . 0 -}}
{{- $component := index . 1 -}}
{{- if eq $root.Values.tls.mode "Existing" -}}
{{- index $root.Values.tls.existing (printf "%sSecret" $component) -}}
{{- else -}}
{{- include "clew.fullname" $root }}-{{ $component }}-tls
{{- end -}}
{{- end -}}

{{/* "true" if the chart's Postgres uses TLS. */}}
{{- define "clew.postgresTLS" -}}
{{- if and .Values.postgres.install (include "clew.tlsSecret" (list . "postgres")) -}}true{{- end -}}
{{- end -}}

{{- define "clew.dsnSecret" -}}
{{- if .Values.postgres.install -}}
{{- .Values.postgres.existingSecret | default (printf "%s-postgres" (include "clew.fullname" .)) -}}
{{- else -}}
{{- required "postgres.install is false: name the Secret that holds the DSN of your Postgres in postgres.external.dsnSecretRef.name" .Values.postgres.external.dsnSecretRef.name -}}
{{- end -}}
{{- end -}}

{{- define "clew.dsnKey" -}}
{{- if .Values.postgres.install -}}dsn{{- else -}}{{ .Values.postgres.external.dsnSecretRef.key }}{{- end -}}
{{- end -}}

{{- define "clew.dsnVolumes" -}}
- name: dsn
  secret:
    secretName: {{ include "clew.dsnSecret" . }}
    defaultMode: 0440
    items:
    - {key: {{ include "clew.dsnKey" . }}, path: dsn}
- name: ca
  {{- include "clew.caVolumeSource" . | nindent 2 }}
{{- end -}}

{{- define "clew.dsnMounts" -}}
- {name: dsn, mountPath: /etc/clew/dsn, readOnly: true}
- {name: ca, mountPath: /etc/clew/ca, readOnly: true}
{{- end -}}

{{/* The authority's certificate as ca.crt. */}}
{{- define "clew.caVolumeSource" -}}
{{- if eq .Values.tls.mode "CertManager" -}}
secret:
  secretName: {{ include "clew.tlsSecret" (list . "server") }}
  defaultMode: 0444
  items:
  - {key: ca.crt, path: ca.crt}
{{- else -}}
configMap:
  name: {{ include "clew.fullname" . }}-ca
{{- end -}}
{{- end -}}

{{/* All DNS names of a Service: (list $ "server"). JSON list. */}}
{{- define "clew.dnsNames" -}}
{{- $root := index . 0 -}}
{{- $name := printf "%s-%s" (include "clew.fullname" $root) (index . 1) -}}
{{- $ns := $root.Release.Namespace -}}
{{- list $name (printf "%s.%s" $name $ns) (printf "%s.%s.svc" $name $ns) (printf "%s.%s.svc.%s" $name $ns $root.Values.clusterDomain) | toJson -}}
{{- end -}}

{{/*
The budgets of namespaces as JSON; empty if there are none.
*/}}
{{- define "clew.budgets" -}}
{{- if or .Values.budgets.perNamespace .Values.budgets.namespaces -}}
{{- toJson .Values.budgets -}}
{{- end -}}
{{- end -}}
