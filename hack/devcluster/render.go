package main

import (
	"encoding/base64"
	"fmt"
	"sort"
	"strings"
)

// renderKubeconfig returns a kubeconfig with one cluster and one user.
func renderKubeconfig(cluster, url, user string, ca, cert, key []byte) ([]byte, error) {
	if len(ca) == 0 || len(cert) == 0 || len(key) == 0 {
		return nil, fmt.Errorf("the kubeconfig of %s needs an authority, a certificate and a key", user)
	}
	b64 := base64.StdEncoding.EncodeToString
	return []byte(fmt.Sprintf(`apiVersion: v1
kind: Config
clusters:
- name: %[1]s
  cluster:
    server: %[2]s
    certificate-authority-data: %[4]s
users:
- name: %[3]s
  user:
    client-certificate-data: %[5]s
    client-key-data: %[6]s
contexts:
- name: %[1]s
  context:
    cluster: %[1]s
    user: %[3]s
current-context: %[1]s
`, cluster, url, user, b64(ca), b64(cert), b64(key))), nil
}

// auditPolicy logs who wrote what, without contents. Reads by the cluster's own components
// are left out: they are most of the traffic, and nobody looks for them.
func auditPolicy() string {
	return `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: None
  nonResourceURLs: ["/healthz*", "/livez*", "/readyz*", "/version", "/openapi/*"]
- level: None
  verbs: [get, list, watch]
  users:
  - system:apiserver
  - system:kube-controller-manager
  - system:kube-scheduler
  - system:kube-proxy
  - clew-devcluster:coredns
  - clew-devcluster:local-path-provisioner
- level: None
  verbs: [get, list, watch]
  userGroups: [system:nodes, system:serviceaccounts:kube-system]
- level: Metadata
`
}

func kubeletConfig(s settings, resolv string) string {
	return fmt.Sprintf(`apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: %[1]s
readOnlyPort: 0
healthzBindAddress: 127.0.0.1
authentication:
  anonymous: {enabled: false}
  webhook: {enabled: true}
  x509: {clientCAFile: %[2]s}
authorization: {mode: Webhook}
tlsCertFile: %[3]s
tlsPrivateKeyFile: %[4]s
containerRuntimeEndpoint: unix://%[5]s
failCgroupV1: false
cgroupDriver: cgroupfs
cgroupRoot: /%[6]s
enforceNodeAllocatable: []
failSwapOn: false
# The machine may forbid lowering it, and nothing here needs that.
oomScoreAdj: 0
# Images come from archives and could not be pulled again.
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
evictionHard:
  memory.available: 100Mi
  nodefs.available: 1%%
  nodefs.inodesFree: 1%%
  imagefs.available: 1%%
maxPods: 200
podPidsLimit: 4096
# Tests kill the same container many times; by default kubelet would soon wait for five
# minutes before it restarts it.
crashLoopBackOff: {maxContainerRestartPeriod: 2s}
clusterDomain: cluster.local
clusterDNS: [%[7]s]
resolvConf: %[8]q
volumePluginDir: %[9]s
%[10]s`, s.nodeIP(), s.path("pki", "ca.crt"), s.path("pki", s.credential("kubelet-server")+".crt"), s.path("pki", s.credential("kubelet-server")+".key"),
		s.containerdSocket(), s.nodeName(), s.dnsIP(), resolv, s.path("volume-plugins"), registeredTaints(s))
}

// registeredTaints returns the part of kubelet's configuration about taints that the node has from the
// beginning.
func registeredTaints(s settings) string {
	if !s.isSecond {
		return ""
	}
	return "registerWithTaints: [{key: " + secondTaint + ", effect: NoSchedule}]\n"
}

func proxyConfig(s settings) string {
	return fmt.Sprintf(`apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: iptables
bindAddress: %[1]s
healthzBindAddress: 127.0.0.1:10256
metricsBindAddress: 127.0.0.1:10249
clusterCIDR: %[2]s
hostnameOverride: %[3]s
oomScoreAdj: 0
clientConnection: {kubeconfig: %[4]s}
# The machine's connection tracking limits are not ours to change.
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
iptables: {minSyncPeriod: 200ms}
`, s.nodeIP(), s.PodCIDR, s.nodeName(), s.path("kube-proxy.kubeconfig"))
}

// containerdConfig returns a configuration for containerd 1.6, the version of Debian 12.
func containerdConfig(s settings, pauseImage string) string {
	return fmt.Sprintf(`version = 2
root = %[1]q
state = %[2]q
oom_score = 0
disabled_plugins = ["io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs", "io.containerd.tracing.processor.v1.otlp"]

[grpc]
  address = %[3]q

[plugins."io.containerd.internal.v1.opt"]
  path = %[4]q

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = %[5]q
  # The machine may forbid lowering oom_score_adj; without this every pod fails.
  restrict_oom_score_adj = true
  disable_apparmor = true
  netns_mounts_under_state_dir = true
  stream_server_address = "127.0.0.1"
  stream_server_port = "0"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = %[6]q
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        BinaryName = "runc"
        SystemdCgroup = false
`, s.own("containerd", "root"), s.own("containerd", "state"), s.containerdSocket(),
		s.own("containerd", "opt"), pauseImage, s.own("cni-conf"))
}

// cniConfig connects each pod to the node by a veth pair of its own. Unlike a bridge, this
// sends traffic between two pods through the node's packet filter, so that Services work
// without the module br_netfilter.
func cniConfig(s settings) string {
	return fmt.Sprintf(`{
  "cniVersion": "0.4.0",
  "name": %[1]q,
  "plugins": [
    {
      "type": "ptp",
      "ipMasq": true,
      "ipam": {
        "type": "host-local",
        "dataDir": %[2]q,
        "ranges": [[{"subnet": %[3]q}]],
        "routes": [{"dst": "0.0.0.0/0"}]
      }
    },
    {"type": "portmap", "capabilities": {"portMappings": true}}
  ]
}
`, s.name(), s.own("ipam"), s.podCIDR())
}

// corefile returns a configuration of CoreDNS that resolves the cluster's names, and others
// if the machine has a name server that the node can reach.
func corefile(s settings, resolv string, haveUpstream bool) string {
	forward := ""
	if haveUpstream {
		forward = "    forward . " + resolv + "\n"
	}
	return fmt.Sprintf(`.:%[1]d {
    bind %[2]s
    errors
    health 127.0.0.1:8080
    ready 127.0.0.1:8181
    kubernetes cluster.local in-addr.arpa {
        kubeconfig %[3]s
        pods insecure
        ttl 5
    }
%[4]s    cache 5
}
`, dnsPort, s.nodeIP(), s.path("coredns.kubeconfig"), forward)
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	return keys
}

// indent puts n spaces before each line of s.
func indent(s string, n int) string {
	pad := strings.Repeat(" ", n)
	return pad + strings.ReplaceAll(strings.TrimRight(s, "\n"), "\n", "\n"+pad) + "\n"
}
