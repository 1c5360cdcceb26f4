package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

const storageNamespace = "local-path-storage"

// manifests returns the objects that DNS and storage need in the API.
func manifests(s settings) string { return dnsManifest(s) + "---\n" + storageManifest() }

// dnsManifest returns a Service with manual endpoints for CoreDNS, which runs outside pods:
// pods ask port 53 of its address, and kube-proxy forwards that to the node's port.
func dnsManifest(s settings) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Service
metadata: {name: kube-dns, namespace: kube-system}
spec:
  clusterIP: %[1]s
  ports:
  - {name: dns, protocol: UDP, port: 53, targetPort: %[3]d}
  - {name: dns-tcp, protocol: TCP, port: 53, targetPort: %[3]d}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: kube-dns-node
  namespace: kube-system
  labels: {kubernetes.io/service-name: kube-dns}
addressType: IPv4
ports:
- {name: dns, protocol: UDP, port: %[3]d}
- {name: dns-tcp, protocol: TCP, port: %[3]d}
endpoints:
- addresses: [%[2]s]
  conditions: {ready: true}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: clew-devcluster:coredns}
rules:
- apiGroups: [""]
  resources: [services, pods, namespaces]
  verbs: [list, watch]
- apiGroups: [discovery.k8s.io]
  resources: [endpointslices]
  verbs: [list, watch]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: clew-devcluster:coredns}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: clew-devcluster:coredns}
subjects:
- {apiGroup: rbac.authorization.k8s.io, kind: User, name: clew-devcluster:coredns}
`, s.dnsIP(), s.nodeIP(), dnsPort)
}

// storageManifest returns the objects that make folders of the node the default storage.
func storageManifest() string {
	return fmt.Sprintf(`apiVersion: v1
kind: Namespace
metadata: {name: %[1]s}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: local-path-provisioner-service-account, namespace: %[1]s}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: local-path-config, namespace: %[1]s}
data:
  setup: |
    #!/bin/sh
    set -eu
    mkdir -m 0777 -p "$VOL_DIR"
  teardown: |
    #!/bin/sh
    set -eu
    rm -rf "$VOL_DIR"
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata:
  name: local-path
  annotations: {storageclass.kubernetes.io/is-default-class: "true"}
provisioner: rancher.io/local-path
volumeBindingMode: WaitForFirstConsumer
reclaimPolicy: Delete
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: clew-devcluster:local-path-provisioner}
rules:
- apiGroups: [""]
  resources: [nodes, persistentvolumeclaims, configmaps, pods, pods/log]
  verbs: [get, list, watch]
- apiGroups: [""]
  resources: [persistentvolumes]
  verbs: [get, list, watch, create, patch, update, delete]
- apiGroups: [""]
  resources: [events]
  verbs: [create, patch]
- apiGroups: [storage.k8s.io]
  resources: [storageclasses]
  verbs: [get, list, watch]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: clew-devcluster:local-path-provisioner}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: clew-devcluster:local-path-provisioner}
subjects:
- {apiGroup: rbac.authorization.k8s.io, kind: User, name: clew-devcluster:local-path-provisioner}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: clew-devcluster:local-path-provisioner, namespace: %[1]s}
rules:
- apiGroups: [""]
  resources: [pods]
  verbs: [create, delete]
- apiGroups: [""]
  resources: [endpoints]
  verbs: [get, list, watch, create, patch, update]
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [get, list, watch, create, patch, update]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: clew-devcluster:local-path-provisioner, namespace: %[1]s}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: clew-devcluster:local-path-provisioner}
subjects:
- {apiGroup: rbac.authorization.k8s.io, kind: User, name: clew-devcluster:local-path-provisioner}
`, storageNamespace)
}

func provisionerConfig(s settings) string {
	return fmt.Sprintf(`{"nodePathMap": [{"node": "DEFAULT_PATH_FOR_NON_LISTED_NODES", "paths": [%q]}]}
`, s.path("volumes"))
}

// helperPod returns the pod that makes and removes a volume's folder.
func helperPod() string {
	return fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: helper-pod}
spec:
  automountServiceAccountToken: false
  terminationGracePeriodSeconds: 0
  tolerations: [{key: node.kubernetes.io/disk-pressure, operator: Exists, effect: NoSchedule}]
  containers:
  - name: helper-pod
    image: %s
    imagePullPolicy: IfNotPresent
`, baseImage)
}

// readyCondition returns nil if a Node object is ready, and has reported that since the
// given time. Its heartbeats have whole seconds.
func readyCondition(node []byte, since time.Time) error {
	var n struct {
		Status struct {
			Conditions []struct {
				Type, Status, Message string
				LastHeartbeatTime     time.Time
			}
		}
	}
	if err := json.Unmarshal(node, &n); err != nil {
		return err
	}
	for _, c := range n.Status.Conditions {
		if c.Type != "Ready" {
			continue
		}
		if c.Status != "True" {
			return fmt.Errorf("the node is not ready: %s", c.Message)
		}
		if c.LastHeartbeatTime.Before(since.Truncate(time.Second)) {
			return errors.New("the node has not reported since kubelet was started")
		}
		return nil
	}
	return errors.New("the node has not reported whether it is ready")
}
