package main

import (
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"
)

func TestConfigsCarrySettings(t *testing.T) {
	s := testSettings(t)
	for name, c := range map[string]struct {
		text string
		want []string
	}{
		"containerd": {containerdConfig(s, "localhost/pause:1"), []string{
			`sandbox_image = "localhost/pause:1"`, "restrict_oom_score_adj = true", s.path("containerd", "root"), `bin_dir = "/usr/lib/cni"`,
		}},
		"kubelet": {kubeletConfig(s, "/r"), []string{
			"address: 10.215.0.2", "cgroupRoot: /clew-devcluster-0", "clusterDNS: [10.214.0.10]", "failCgroupV1: false", "containerRuntimeEndpoint: unix://" + s.State, "nodefs.available: 1%\n", "maxContainerRestartPeriod: 2s",
		}},
		"kube-proxy":       {proxyConfig(s), []string{"clusterCIDR: 10.213.0.0/20", "mode: iptables", "maxPerCore: 0"}},
		"CoreDNS":          {corefile(s, "/r", true), []string{".:1053 {", "bind 10.215.0.2", "forward . /r"}},
		"DNS's Service":    {dnsManifest(s), []string{"clusterIP: 10.214.0.10", "addresses: [10.215.0.2]", "targetPort: 1053"}},
		"audit policy":     {auditPolicy(), []string{"- level: Metadata\n", "omitStages: [RequestReceived]"}},
		"storage":          {provisionerConfig(s), []string{s.path("volumes")}},
		"helper":           {helperPod(), []string{baseImage}},
		"API server":       {strings.Join(apiserverArgs(s, binaries{}), "\n"), []string{"--requestheader-allowed-names=front-proxy-client", "--enable-aggregator-routing=true", "--secure-port=16443"}},
		"namespace script": {holderScript(s, "/p'q"), []string{"mount --make-rprivate /\nmount --make-rshared /", `exec '/p'\''q'`}},
	} {
		for _, want := range c.want {
			if !strings.Contains(c.text, want) {
				t.Errorf("%s: %q is missing in\n%s", name, want, c.text)
			}
		}
	}
	if text := corefile(s, "/r", false); strings.Contains(text, "forward") {
		t.Errorf("CoreDNS forwards to no name server:\n%s", text)
	}
	if !json.Valid([]byte(cniConfig(s))) || !json.Valid([]byte(provisionerConfig(s))) {
		t.Error("a configuration is not JSON")
	}
}

func TestResolvConf(t *testing.T) {
	files := func(m map[string]string) func(string) ([]byte, error) {
		return func(name string) ([]byte, error) {
			if text, ok := m[name]; ok {
				return []byte(text), nil
			}
			return nil, errors.New("no such file")
		}
	}
	for name, c := range map[string]struct {
		files map[string]string
		want  string
	}{
		"plain":    {map[string]string{"/etc/resolv.conf": "search x\nnameserver 192.0.2.1\nnameserver fe80::1%eth0\n"}, "nameserver 192.0.2.1\n"},
		"stub":     {map[string]string{"/etc/resolv.conf": "nameserver 127.0.0.53\n", "/run/systemd/resolve/resolv.conf": "nameserver 192.0.2.2\n"}, "nameserver 192.0.2.2\n"},
		"loopback": {map[string]string{"/etc/resolv.conf": "nameserver 127.0.0.1\n"}, ""},
		"none":     {nil, ""},
	} {
		if got := resolvConf(files(c.files)); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func TestReadyCondition(t *testing.T) {
	start := time.Date(2030, 1, 1, 0, 0, 10, 500, time.UTC)
	node := func(status, heartbeat string) string {
		return `{"status":{"conditions":[{"type":"DiskPressure","status":"False"},{"type":"Ready","status":"` + status + `","message":"because","lastHeartbeatTime":"` + heartbeat + `"}]}}`
	}
	for name, c := range map[string]struct{ node, says string }{
		"ready":          {node("True", "2030-01-01T00:00:10Z"), fmt.Sprint(nil)},
		"not ready":      {node("False", "2030-01-01T00:00:10Z"), "because"},
		"said so before": {node("True", "2030-01-01T00:00:09Z"), "since kubelet was started"},
		"silent":         {`{}`, "has not reported"},
	} {
		got := fmt.Sprint(readyCondition([]byte(c.node), start))
		if !strings.Contains(got, c.says) {
			t.Errorf("%s: the error is %q, want %q", name, got, c.says)
		}
	}
}

func TestCleanEnv(t *testing.T) {
	got := cleanEnv([]string{"PATH=/bin", "https_proxy=x", "NO_PROXY=y", "KUBECONFIG=z", "HOME=/h"})
	if strings.Join(got, " ") != "PATH=/bin HOME=/h" {
		t.Errorf("got %q", got)
	}
}

// TestCertificates checks that each certificate is good for its purpose.
func TestCertificates(t *testing.T) {
	s := testSettings(t)
	pki := s.path("pki")
	if err := makeCertificates(s, pki); err != nil {
		t.Fatal(err)
	}
	ca := x509.NewCertPool()
	ca.AddCert(readCert(t, s, "ca"))
	for _, id := range clusterIdentities(s) {
		cert := readCert(t, s, id.file)
		if _, err := cert.Verify(x509.VerifyOptions{Roots: ca, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
			t.Errorf("%s as a client: %v", id.file, err)
		}
		if cert.Subject.CommonName != id.user {
			t.Errorf("%s is %s, want %s", id.file, cert.Subject.CommonName, id.user)
		}
	}
	server := readCert(t, s, "apiserver")
	for _, host := range []string{"kubernetes.default.svc", s.nodeIP().String(), s.apiIP().String()} {
		if err := server.VerifyHostname(host); err != nil {
			t.Error(err)
		}
	}
	front := readCert(t, s, "front-proxy-client")
	if _, err := front.Verify(x509.VerifyOptions{Roots: ca, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}); err == nil {
		t.Error("the aggregation layer's client is trusted as a client of the cluster")
	}
	before, _ := os.ReadFile(s.path("pki", "ca.crt"))
	if err := makeCertificates(s, pki); err != nil {
		t.Fatal(err)
	}
	if after, _ := os.ReadFile(s.path("pki", "ca.crt")); string(after) != string(before) {
		t.Error("a second call made another authority")
	}
	conf, err := kubeconfigFor(s, pki, "admin")
	if err != nil || !strings.Contains(string(conf), "server: https://"+net.JoinHostPort("10.215.0.2", "16443")) {
		t.Errorf("kubeconfig: %v\n%s", err, conf)
	}
}

func readCert(t *testing.T, s settings, name string) *x509.Certificate {
	t.Helper()
	data, err := os.ReadFile(s.path("pki", name+".crt"))
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(data)
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}
