//go:build e2e

package e2e

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os/exec"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/worktree"
)

// forward makes a service's port reachable from here until the test ends, and
// returns the address.
func (w *world) forward(namespace, service string, port int) string {
	w.Helper()
	cmd := exec.CommandContext(w.ctx, "kubectl", "--namespace", namespace, "port-forward", "service/"+service, fmt.Sprintf(":%d", port))
	stdout, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { _ = cmd.Wait() })
	out := bufio.NewReader(stdout)
	line, err := out.ReadString('\n')
	address, _, ok := strings.Cut(strings.TrimPrefix(line, "Forwarding from "), " ")
	if err != nil || !ok {
		w.Fatalf("kubectl port-forward of %s says %q: %v", service, line, err)
	}
	go func() { _, _ = io.Copy(io.Discard, out) }() // it says a word for each connection
	return address
}

// gitstoreRemote is this namespace's repository of the demo's origin, as
// someone who may view the namespace reaches it. The certificate is for the
// service's name, which this machine cannot resolve: a proxy stands between.
func (w *world) gitstoreRemote() worktree.Remote {
	w.Helper()
	authorities := &corev1.ConfigMap{}
	if err := w.kube.Get(w.ctx, client.ObjectKey{Namespace: systemNamespace, Name: "clew-ca"}, authorities); err != nil {
		w.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM([]byte(authorities.Data["ca.crt"]))
	address := w.forward(systemNamespace, "clew-gitstore", 8443)
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "https", Host: "clew-gitstore." + systemNamespace + ".svc:8443"})
	proxy.Transport = &http.Transport{
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, address)
		},
		TLSClientConfig: &tls.Config{RootCAs: roots},
	}
	server := httptest.NewServer(proxy)
	w.Cleanup(server.Close)
	return worktree.Remote{
		URL:   server.URL + "/" + w.namespace + "/" + daemonapi.RepositoryKey(originURL) + ".git",
		Token: w.readerToken(),
	}
}

// readerToken is a token for Clew of someone who may view the test's namespace.
func (w *world) readerToken() string {
	w.Helper()
	reader := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, GenerateName: "reader-"}}
	if err := w.kube.Create(w.ctx, reader); err != nil {
		w.Fatal(err)
	}
	if err := w.kube.Create(w.ctx, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: reader.Name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "view"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: w.namespace, Name: reader.Name}},
	}); err != nil {
		w.Fatal(err)
	}
	got, err := w.clientset.CoreV1().ServiceAccounts(w.namespace).CreateToken(w.ctx, reader.Name, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{Audiences: []string{daemonapi.GitStoreAudience}},
	}, metav1.CreateOptions{})
	if err != nil {
		w.Fatal(err)
	}
	return got.Status.Token
}
