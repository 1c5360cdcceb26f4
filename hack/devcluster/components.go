package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const (
	dnsPort    = 1053 // CoreDNS's port on the node; pods ask the Service's port 53
	auditFile  = "audit.log"
	pauseImage = "localhost/clew-dev/pause:1"
	baseImage  = "localhost/clew-dev/base:bookworm"
)

// component is one long-running program of the cluster.
type component struct {
	name  string
	argv  []string
	ready func(context.Context) error // nil if it only has to run
	limit time.Duration               // for ready
}

func (s settings) containerdSocket() string { return s.own("containerd", "containerd.sock") }

// components lists the cluster's programs in the order in which they start.
func components(s settings, bins binaries) []component {
	runtime := component{name: "containerd", argv: []string{"containerd", "--config", s.own("containerd.toml")}, ready: s.containerdReady, limit: 30 * time.Second}
	proxy := component{name: "kube-proxy", argv: []string{bins.kube("kube-proxy"), "--config", s.own("kube-proxy.yaml")}}
	kubelet := component{name: "kubelet", argv: kubeletArgs(s, bins)}
	if s.isSecond {
		return []component{runtime, proxy, kubelet}
	}
	return []component{
		{name: "etcd", argv: etcdArgs(s, bins)},
		{name: "kube-apiserver", argv: apiserverArgs(s, bins), ready: s.apiReady, limit: 90 * time.Second},
		runtime,
		{name: "kube-controller-manager", argv: controllerManagerArgs(s, bins)},
		{name: "kube-scheduler", argv: schedulerArgs(s, bins)},
		proxy,
		kubelet,
		{name: "coredns", argv: []string{bins.coredns, "-conf", s.path("Corefile")}},
		{name: "local-path-provisioner", argv: provisionerArgs(s, bins)},
	}
}

func etcdArgs(s settings, bins binaries) []string {
	return []string{
		bins.etcd, "--name=" + s.name(), "--data-dir=" + s.path("etcd"), "--logger=zap", "--log-level=warn",
		// The node has its own loopback interface, so these addresses collide with nothing.
		"--listen-client-urls=http://127.0.0.1:2379", "--advertise-client-urls=http://127.0.0.1:2379",
		"--listen-peer-urls=http://127.0.0.1:2380", "--initial-advertise-peer-urls=http://127.0.0.1:2380",
		"--initial-cluster=" + s.name() + "=http://127.0.0.1:2380",
		// Speed matters more here than surviving a crash of the machine.
		"--unsafe-no-fsync", "--quota-backend-bytes=4294967296", "--auto-compaction-retention=10m",
	}
}

func apiserverArgs(s settings, bins binaries) []string {
	pki := func(f string) string { return s.path("pki", f) }
	return []string{
		bins.kube("kube-apiserver"),
		"--etcd-servers=http://127.0.0.1:2379",
		"--bind-address=0.0.0.0", "--advertise-address=" + s.nodeIP().String(), fmt.Sprintf("--secure-port=%d", s.APIPort),
		"--tls-cert-file=" + pki("apiserver.crt"), "--tls-private-key-file=" + pki("apiserver.key"),
		"--client-ca-file=" + pki("ca.crt"),
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction", "--anonymous-auth=true",
		"--allow-privileged=true",
		"--service-cluster-ip-range=" + s.ServiceCIDR.String(),
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file=" + pki("service-account.pub"), "--service-account-signing-key-file=" + pki("service-account.key"),
		"--kubelet-certificate-authority=" + pki("ca.crt"),
		"--kubelet-client-certificate=" + pki("apiserver-kubelet-client.crt"), "--kubelet-client-key=" + pki("apiserver-kubelet-client.key"),
		"--kubelet-preferred-address-types=InternalIP",
		"--requestheader-client-ca-file=" + pki("front-proxy-ca.crt"), "--requestheader-allowed-names=front-proxy-client",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-", "--requestheader-group-headers=X-Remote-Group",
		"--requestheader-username-headers=X-Remote-User", "--requestheader-uid-headers=X-Remote-Uid",
		"--proxy-client-cert-file=" + pki("front-proxy-client.crt"), "--proxy-client-key-file=" + pki("front-proxy-client.key"),
		"--enable-aggregator-routing=true",
		"--audit-policy-file=" + s.path("audit-policy.yaml"), "--audit-log-path=" + s.path(auditFile), "--audit-log-format=json",
		"--audit-log-maxsize=1000", "--audit-log-maxbackup=1",
		"--profiling=false",
	}
}

func controllerManagerArgs(s settings, bins binaries) []string {
	conf := s.path("kube-controller-manager.kubeconfig")
	return []string{
		bins.kube("kube-controller-manager"),
		"--kubeconfig=" + conf, "--authentication-kubeconfig=" + conf, "--authorization-kubeconfig=" + conf,
		"--bind-address=127.0.0.1", "--leader-elect=false", "--use-service-account-credentials=true",
		"--root-ca-file=" + s.path("pki", "ca.crt"),
		"--cluster-signing-cert-file=" + s.path("pki", "ca.crt"), "--cluster-signing-key-file=" + s.path("pki", "ca.key"),
		"--service-account-private-key-file=" + s.path("pki", "service-account.key"),
		"--service-cluster-ip-range=" + s.ServiceCIDR.String(),
		"--flex-volume-plugin-dir=" + s.path("volume-plugins"),
		"--profiling=false",
	}
}

func schedulerArgs(s settings, bins binaries) []string {
	conf := s.path("kube-scheduler.kubeconfig")
	return []string{
		bins.kube("kube-scheduler"),
		"--kubeconfig=" + conf, "--authentication-kubeconfig=" + conf, "--authorization-kubeconfig=" + conf,
		"--bind-address=127.0.0.1", "--leader-elect=false", "--profiling=false",
	}
}

func kubeletArgs(s settings, bins binaries) []string {
	return []string{
		bins.kube("kubelet"), "--config=" + s.own("kubelet.yaml"), "--kubeconfig=" + s.path(s.credential("kubelet")+".kubeconfig"),
		"--root-dir=" + s.own("kubelet"), "--hostname-override=" + s.nodeName(), "--node-ip=" + s.nodeIP().String(),
	}
}

func provisionerArgs(s settings, bins binaries) []string {
	return []string{
		bins.provisioner, "start", "--kubeconfig=" + s.path("local-path-provisioner.kubeconfig"),
		"--config=" + s.path("local-path.json"), "--helper-pod-file=" + s.path("local-path-helper.yaml"),
		"--helper-image=" + baseImage, "--namespace=" + storageNamespace,
	}
}

// writeConfigs writes all files that the components read.
func writeConfigs(s settings) error {
	pki := s.path("pki")
	if err := makeCertificates(s, pki); err != nil {
		return err
	}
	users := []string{"admin", "kube-controller-manager", "kube-scheduler", "kube-proxy", "coredns", "local-path-provisioner"}
	for _, n := range s.nodes() {
		users = append(users, n.credential("kubelet"))
	}
	for _, user := range users {
		data, err := kubeconfigFor(s, pki, user)
		if err != nil {
			return err
		}
		if err := writeFile(s.path(user+".kubeconfig"), data, 0o600); err != nil {
			return err
		}
	}
	resolv := resolvConf(os.ReadFile)
	files := map[string]string{
		s.path("resolv.conf"):            resolv,
		s.path("audit-policy.yaml"):      auditPolicy(),
		s.path("Corefile"):               corefile(s, s.path("resolv.conf"), resolv != ""),
		s.path("local-path.json"):        provisionerConfig(s),
		s.path("local-path-helper.yaml"): helperPod(),
	}
	for _, n := range s.nodes() {
		files[n.own("kubelet.yaml")] = kubeletConfig(n, s.path("resolv.conf"))
		files[n.own("kube-proxy.yaml")] = proxyConfig(n)
		files[n.own("containerd.toml")] = containerdConfig(n, pauseImage)
		files[n.own("cni-conf/10-clew.conflist")] = cniConfig(n)
	}
	for path, content := range files {
		if err := writeFile(path, []byte(content), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// apiClient returns an HTTP client with the administrator's certificate.
func (s settings) apiClient() (*http.Client, error) {
	ca, err := os.ReadFile(s.path("pki", "ca.crt"))
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca)
	cert, err := tls.LoadX509KeyPair(s.path("pki", "admin.crt"), s.path("pki", "admin.key"))
	if err != nil {
		return nil, err
	}
	return &http.Client{
		Timeout:   5 * time.Second,
		Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{cert}}},
	}, nil
}

// get fetches a path of the API. Any status other than 200 is an error.
func (s settings) get(ctx context.Context, path string) ([]byte, error) {
	client, err := s.apiClient()
	if err != nil {
		return nil, err
	}
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.apiURL()+path, nil)
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 64<<20))
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answers %s: %s", path, resp.Status, lastLines(strings.TrimSpace(string(body)), 5))
	}
	return body, nil
}

func (s settings) apiReady(ctx context.Context) error {
	_, err := s.get(ctx, "/readyz")
	return err
}

// containerdReady returns nil once containerd serves kubelet's requests. Its CRI service
// starts last, after it has read the state of all containers, and a kubelet that asks
// before exits.
func (s settings) containerdReady(ctx context.Context) error {
	conn, err := grpc.NewClient("unix://"+s.containerdSocket(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = cri.NewRuntimeServiceClient(conn).Version(ctx, &cri.VersionRequest{})
	return err
}

// nodeReady returns nil once the node has reported, after since, that pods can run on it.
// An older report may be that of a kubelet that was killed.
func (s settings) nodeReady(ctx context.Context, since time.Time) error {
	data, err := s.get(ctx, "/api/v1/nodes/"+s.nodeName())
	if err != nil {
		return err
	}
	return readyCondition(data, since)
}

// podsKnown returns nil once kubelet knows all pods that the API has for its node. Before
// that, exec and logs do not find them.
func (s settings) podsKnown(ctx context.Context) error {
	var counts [2]int
	for i, path := range []string{"/api/v1/nodes/" + s.nodeName() + "/proxy/pods", "/api/v1/pods?fieldSelector=spec.nodeName=" + s.nodeName()} {
		data, err := s.get(ctx, path)
		if err != nil {
			return err
		}
		var list struct{ Items []struct{} }
		if err := json.Unmarshal(data, &list); err != nil {
			return err
		}
		counts[i] = len(list.Items)
	}
	if counts[0] < counts[1] {
		return fmt.Errorf("kubelet knows %d of %d pods", counts[0], counts[1])
	}
	return nil
}

// servicesReady returns nil once the API server can be reached at its cluster address and
// the cluster's DNS resolves its name.
func (s settings) servicesReady(ctx context.Context) error {
	d := net.Dialer{Timeout: time.Second}
	conn, err := d.DialContext(ctx, "tcp", net.JoinHostPort(s.apiIP().String(), "443"))
	if err != nil {
		return fmt.Errorf("the cluster address of the API server does not answer: %w", err)
	}
	conn.Close()
	resolver := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return d.DialContext(ctx, network, net.JoinHostPort(s.dnsIP().String(), "53"))
	}}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	got, err := resolver.LookupHost(ctx, "kubernetes.default.svc.cluster.local.")
	if err != nil {
		return fmt.Errorf("the cluster's DNS does not answer: %w", err)
	}
	if len(got) != 1 || got[0] != s.apiIP().String() {
		return fmt.Errorf("the cluster's DNS resolves the API server to %v, not %s", got, s.apiIP())
	}
	return nil
}

// binaries holds the paths of the programs that were built.
type binaries struct {
	kubeDir, etcd, coredns, provisioner, pause string
}

func (b binaries) kube(name string) string { return filepath.Join(b.kubeDir, name) }
