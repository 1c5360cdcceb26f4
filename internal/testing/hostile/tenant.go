package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/clew-dev/clew/internal/daemonapi"
)

const (
	account      = "/var/run/secrets/kubernetes.io/serviceaccount/"
	appendPath   = "/clew.daemon.v1.DaemonService/Append"
	commandsPath = "/clew.daemon.v1.DaemonService/Commands"
)

// tenant is a user who may edit a namespace.
type tenant struct {
	namespace, task  string
	server, gitstore string // host and port
	api              *http.Client
	http             *http.Client
	// fresh opens a connection for each request.
	fresh *http.Client

	mu sync.Mutex
	// tokens are the tokens of the task's pod, by audience.
	tokens map[string]string
}

// newTenant returns the tenant of the pod's namespace.
func newTenant() (*tenant, error) {
	namespace, err := os.ReadFile(account + "namespace")
	if err != nil {
		return nil, err
	}
	authority, err := os.ReadFile(account + "ca.crt")
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority)
	stranger := &tls.Config{InsecureSkipVerify: true}
	return &tenant{
		namespace: string(namespace), task: os.Getenv("HOSTILE_TASK"), tokens: map[string]string{},
		server: "clew-server.clew-system.svc:8443", gitstore: "clew-gitstore.clew-system.svc:8443",
		api: &http.Client{Timeout: time.Minute, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, MaxIdleConnsPerHost: 64}},
		http: &http.Client{Timeout: 5 * time.Minute, Transport: &http.Transport{
			TLSClientConfig: stranger, MaxIdleConnsPerHost: 256, ForceAttemptHTTP2: true}},
		fresh: &http.Client{Timeout: time.Minute, Transport: &http.Transport{TLSClientConfig: stranger, DisableKeepAlives: true, ForceAttemptHTTP2: true}},
	}, nil
}

// kube makes a request to the Kubernetes API.
func (t *tenant) kube(ctx context.Context, method, path string, body, answer any) error {
	token, err := os.ReadFile(account + "token")
	if err != nil {
		return err
	}
	var content io.Reader
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			return err
		}
		content = bytes.NewReader(data)
	}
	r, err := http.NewRequestWithContext(ctx, method, "https://"+net.JoinHostPort(os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT"))+path, content)
	if err != nil {
		return err
	}
	r.Header.Set("Authorization", "Bearer "+string(token))
	r.Header.Set("Content-Type", "application/json")
	if method == http.MethodPatch {
		r.Header.Set("Content-Type", "application/merge-patch+json")
	}
	response, err := t.api.Do(r)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if err := refused(response); err != nil {
		return err
	}
	if answer == nil {
		_, err = io.Copy(io.Discard, response.Body)
		return err
	}
	return json.NewDecoder(response.Body).Decode(answer)
}

// refused returns an error for a response that is not a success.
func refused(response *http.Response) error {
	if response.StatusCode < 300 {
		return nil
	}
	body, _ := io.ReadAll(io.LimitReader(response.Body, 200)) // the status is enough
	return fmt.Errorf("%s: %s", response.Status, body)
}

// renew requests tokens that are bound to the pod of the task's newest attempt.
func (t *tenant) renew(ctx context.Context, _, _ int) error {
	var pods struct {
		Items []struct {
			Metadata struct{ Name, UID string }
			Spec     struct{ ServiceAccountName string }
			Status   struct{ Phase string }
		}
	}
	prefix := "/api/v1/namespaces/" + t.namespace
	if err := t.kube(ctx, http.MethodGet, prefix+"/pods?labelSelector=clew.dev%2Ftask%3D"+t.task, nil, &pods); err != nil {
		return err
	}
	for _, pod := range pods.Items {
		if pod.Status.Phase != "Running" {
			continue
		}
		for _, audience := range []string{daemonapi.ServerAudience, daemonapi.GitStoreAudience} {
			request := map[string]any{"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": map[string]any{
				"audiences":      []string{audience},
				"boundObjectRef": map[string]any{"apiVersion": "v1", "kind": "Pod", "name": pod.Metadata.Name, "uid": pod.Metadata.UID},
			}}
			var made struct{ Status struct{ Token string } }
			if err := t.kube(ctx, http.MethodPost, prefix+"/serviceaccounts/"+pod.Spec.ServiceAccountName+"/token", request, &made); err != nil {
				return err
			}
			t.mu.Lock()
			t.tokens[audience] = made.Status.Token
			t.mu.Unlock()
		}
		return nil
	}
	return errors.New("the task has no pod")
}

// token returns the token of the task's pod.
func (t *tenant) token(audience string) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.tokens[audience]
}

// madeUp returns an invented token that looks like one of the cluster's.
func (t *tenant) madeUp(audience string) string {
	part := func(v any) string {
		data, _ := json.Marshal(v) // plain values
		return base64.RawURLEncoding.EncodeToString(data)
	}
	signature := make([]byte, 256)
	_, _ = rand.Read(signature) // never fails
	return part(map[string]string{"alg": "RS256", "kid": "made-up"}) + "." + part(map[string]any{
		"aud": []string{audience}, "exp": time.Now().Add(time.Hour).Unix(), "iss": "https://kubernetes.default.svc.cluster.local", "jti": rand.Text(),
		"kubernetes.io": map[string]any{"namespace": t.namespace, "pod": map[string]string{"name": "made-up", "uid": rand.Text()}},
	}) + "." + base64.RawURLEncoding.EncodeToString(signature)
}

// send makes one request with a token and reads the whole response.
func send(ctx context.Context, client *http.Client, method, url, token string, body io.Reader, header ...string) error {
	return exchange(ctx, client, io.Discard, method, url, token, body, header...)
}

// receive returns the response to a GET request with a token.
func receive(ctx context.Context, client *http.Client, url, token string) (string, error) {
	var answer strings.Builder
	err := exchange(ctx, client, &answer, http.MethodGet, url, token, nil)
	return answer.String(), err
}

// exchange makes one request with a token, and copies the response's body to answer.
func exchange(ctx context.Context, client *http.Client, answer io.Writer, method, url, token string, body io.Reader, header ...string) error {
	r, err := http.NewRequestWithContext(ctx, method, url, body)
	if err != nil {
		return err
	}
	r.Header.Set("Authorization", "Bearer "+token)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	response, err := client.Do(r)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if err := refused(response); err != nil {
		return err
	}
	_, err = io.Copy(answer, response.Body)
	return err
}

// emptyRecords returns a request with one empty record per two bytes.
func emptyRecords(size int, zipped bool) []byte {
	plain := bytes.Repeat([]byte{0x0a, 0x00}, size/2)
	if !zipped {
		return plain
	}
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, _ = w.Write(plain) // writes to a buffer never fail
	_ = w.Close()
	return out.Bytes()
}

// drip sends one byte of a request per second, until the server ends the connection.
func (t *tenant) drip(ctx context.Context, address, head string) error {
	dialer := tls.Dialer{NetDialer: &net.Dialer{Timeout: 10 * time.Second}, Config: &tls.Config{InsecureSkipVerify: true}}
	c, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err := io.Copy(c, strings.NewReader(head)); err != nil {
		return err
	}
	for ctx.Err() == nil {
		_ = c.SetWriteDeadline(time.Now().Add(10 * time.Second)) // a connection of this kind has deadlines
		if _, err := c.Write([]byte("\n")); err != nil {
			return err
		}
		rest(ctx, time.Second)
	}
	return ctx.Err()
}
