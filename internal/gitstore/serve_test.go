package gitstore

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/pflag"
)

// startServe runs serve in this process and returns its URL, its CA and a function that
// ends it.
func startServe(t *testing.T, options Options) (url, ca string, end func() error) {
	t.Helper()
	certificate, authority, err := selfSigned()
	if err != nil {
		t.Fatal(err)
	}
	ca = filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, authority, 0o600); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	options.Root = t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- serve(ctx, options, wordOfToken{}, testHook(), listener, fixedCertificate{certificate}, logr.Discard())
	}()
	t.Cleanup(cancel)
	url = "https://" + listener.Addr().String()
	// The test may start processes only after that: one that is forked while the hook is
	// being written keeps the hook from being executed.
	for status := 0; status != http.StatusOK; {
		select {
		case err := <-ended:
			t.Fatalf("serve ended with %v", err)
		default:
			status, _ = get(t, url+"/readyz")
		}
	}
	return url, ca, func() error { cancel(); return <-ended }
}

// insecureClient accepts any certificate and opens a connection per request.
func insecureClient() *http.Client {
	return &http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true,
	}}
}

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	response, err := insecureClient().Get(url)
	if err != nil {
		return 0, err.Error()
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(body)
}

func TestServeProbesMetricsAndGracefulEnd(t *testing.T) {
	metrics, health := freeAddress(t), freeAddress(t)
	url, ca, end := startServe(t, Options{
		MetricsBindAddress: metrics, HealthProbeBindAddress: health,
		MaintenanceInterval: time.Hour, ShutdownGracePeriod: 20 * time.Second,
	})
	task := newClient(t, url+"/team/"+repository+".git", ca, taskToken("fix", 1))
	task.commit("a", "one")
	task.push("HEAD:" + codeRef("fix", 1))
	for path, says := range map[string]string{
		url + "/healthz": "ok", url + "/readyz": "ok",
		"http://" + health + "/healthz": "ok", "http://" + health + "/readyz": "ok",
		"http://" + metrics + "/metrics": `clew_gitstore_pushes_total{outcome="stored"} 1`,
	} {
		if status, body := get(t, path); status != http.StatusOK || !strings.Contains(body, says) {
			t.Errorf("%s: got %d %q, want 200 with %q", path, status, body, says)
		}
	}

	// A push that is in progress when the signal arrives is finished and acknowledged.
	commit := task.commit("b", "two")
	body, finish := task.beginPush(url, taskToken("fix", 1), commit, codeRef("fix", 2))
	for exposed := ""; !strings.Contains(exposed, "clew_gitstore_requests_in_flight 1"); {
		_, exposed = get(t, "http://"+metrics+"/metrics")
	}
	ended := make(chan error, 1)
	go func() { ended <- end() }()
	for status := 0; status != http.StatusServiceUnavailable; {
		status, _ = get(t, "http://"+health+"/readyz")
	}
	if status, _ := get(t, url+"/healthz"); status != 0 {
		t.Errorf("new connections are still accepted: %d", status)
	}
	if answer := finish(body); !strings.Contains(answer, "unpack ok") {
		t.Errorf("the push in progress failed: %q", answer)
	}
	if err := <-ended; err != nil {
		t.Errorf("serve ended with %v", err)
	}
}

// beginPush sends the first half of a push of one new ref. finish sends the
// rest and returns the response.
func (c *client) beginPush(url, token, commit, ref string) (rest string, finish func(string) string) {
	c.t.Helper()
	objects := strings.Fields(c.git("rev-list", "--objects", "--no-object-names", commit))
	pack := c.packOf(objects...)
	line := strings.Repeat("0", 40) + " " + commit + " " + ref + "\x00 report-status side-band-64k"
	content := string(packet([]byte(line))) + "0000" + pack
	reader, writer := io.Pipe()
	request, err := http.NewRequestWithContext(c.t.Context(), http.MethodPost, url+"/team/"+repository+".git/git-receive-pack", reader)
	if err != nil {
		c.t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+token)
	request.Header.Set("Content-Type", "application/x-git-receive-pack-request")
	answered := make(chan string, 1)
	go func() {
		answered <- answerOf(request)
	}()
	half := len(content) - len(pack)/2
	if _, err := io.WriteString(writer, content[:half]); err != nil {
		c.t.Fatal(err)
	}
	return content[half:], func(rest string) string {
		_, err := io.WriteString(writer, rest)
		if err = errors.Join(err, writer.Close()); err != nil {
			c.t.Error(err)
		}
		return <-answered
	}
}

// answerOf sends a request and returns the body of the response, or the error.
func answerOf(request *http.Request) string {
	response, err := insecureClient().Do(request)
	if err != nil {
		return err.Error()
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return err.Error()
	}
	return string(body)
}

func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}

func TestRunSaysWhatIsMissing(t *testing.T) {
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	content := "apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: 'https://127.0.0.1:1'}}]\ncontexts: [{name: c, context: {cluster: c}}]\ncurrent-context: c\n"
	if err := os.WriteFile(kubeconfig, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	for says, change := range map[string]func(*Options){
		"--log-level":           func(o *Options) { o.LogLevel = "loud" },
		"Kubernetes API server": func(o *Options) { o.Kubeconfig, o.CertFile, o.KeyFile = "/nonexistent", "x", "x" },
		"--tls-cert-file":       func(*Options) {},
		"TLS certificate":       func(o *Options) { o.CertFile, o.KeyFile = "/nonexistent", "/nonexistent" },
		"must differ":           func(o *Options) { o.CertFile, o.KeyFile, o.MetricsBindAddress = "x", "x", o.HealthProbeBindAddress },
	} {
		var options Options
		flags := pflag.NewFlagSet("serve", pflag.ContinueOnError)
		options.AddFlags(flags)
		options.Kubeconfig = kubeconfig
		change(&options)
		if err := Run(t.Context(), options, testHook()); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("Run returned %v, want an error that contains %q", err, says)
		}
	}
}
