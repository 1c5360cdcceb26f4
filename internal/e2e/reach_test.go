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

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/worktree"
)

// forward forwards a local port to a service until the spec ends, and returns its address.
func (w *world) forward(ctx context.Context, namespace, service string, port int) string {
	GinkgoHelper()
	cmd := exec.CommandContext(ctx, "kubectl", "--namespace", namespace, "port-forward", "service/"+service, fmt.Sprintf(":%d", port))
	stdout, err := cmd.StdoutPipe()
	Expect(err).NotTo(HaveOccurred())
	Expect(cmd.Start()).To(Succeed())
	DeferCleanup(func() { _ = cmd.Wait() })
	out := bufio.NewReader(stdout)
	line, err := out.ReadString('\n')
	Expect(err).NotTo(HaveOccurred(), "kubectl port-forward of %s: %q", service, line)
	address, _, ok := strings.Cut(strings.TrimPrefix(line, "Forwarding from "), " ")
	Expect(ok).To(BeTrue(), "kubectl port-forward of %s names no address: %q", service, line)
	go func() { _, _ = io.Copy(io.Discard, out) }() // it prints a line for each connection
	return address
}

// gitstoreRemote returns this namespace's repository of the demo's origin as a remote, for
// a user with the right to view the namespace. The certificate is for the service's name,
// which this machine cannot resolve, so a proxy is in between.
func (w *world) gitstoreRemote(ctx context.Context) worktree.Remote {
	GinkgoHelper()
	authorities := &corev1.ConfigMap{}
	Expect(w.kube.Get(ctx, client.ObjectKey{Namespace: systemNamespace, Name: "clew-ca"}, authorities)).To(Succeed())
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM([]byte(authorities.Data["ca.crt"]))
	address := w.forward(ctx, systemNamespace, "clew-gitstore", 8443)
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "https", Host: "clew-gitstore." + systemNamespace + ".svc:8443"})
	proxy.Transport = &http.Transport{
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, address)
		},
		TLSClientConfig: &tls.Config{RootCAs: roots},
	}
	server := httptest.NewServer(proxy)
	DeferCleanup(server.Close)
	return worktree.Remote{
		URL:   server.URL + "/" + w.namespace + "/" + daemonapi.RepositoryKey(originURL) + ".git",
		Token: w.readerToken(ctx),
	}
}

// readerToken returns a token for the gitstore, of a user who may view the namespace.
func (w *world) readerToken(ctx context.Context) string {
	GinkgoHelper()
	reader := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, GenerateName: "reader-"}}
	Expect(w.kube.Create(ctx, reader)).To(Succeed())
	Expect(w.kube.Create(ctx, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: reader.Name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "view"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: w.namespace, Name: reader.Name}},
	})).To(Succeed())
	got, err := w.clientset.CoreV1().ServiceAccounts(w.namespace).CreateToken(ctx, reader.Name, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{Audiences: []string{daemonapi.GitStoreAudience}},
	}, metav1.CreateOptions{})
	Expect(err).NotTo(HaveOccurred())
	return got.Status.Token
}
