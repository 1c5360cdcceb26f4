// Command origin serves the bare git repositories of a folder over smart HTTP, read
// only, with git's own http-backend. The demo and the end-to-end tests use it as the
// git host that tasks clone from.
//
// Repositories under ROOT/private/ require HTTP basic authentication with the user
// and password from the flags. Over HTTPS, with a certificate of its own that is at /ca.crt
// over HTTP, this user may also clone and push the repositories of a second folder, at /push/.
package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"flag"
	"fmt"
	"log"
	"math/big"
	"net/http"
	"net/http/cgi"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

func main() {
	root := flag.String("root", "/srv/git", "folder of bare repositories")
	address := flag.String("address", ":8080", "address to listen on")
	user := flag.String("user", "demo", "user who may read ROOT/private")
	password := flag.String("password", "", "password of that user; empty denies everyone")
	push := flag.String("push-root", "/tmp/push", "folder of the repositories that the user may push to")
	secure := flag.String("tls-address", ":8443", "address to listen on for HTTPS")
	host := flag.String("host", "origin.clew-demo.svc", "name in the certificate")
	flag.Parse()

	backend, err := httpBackend()
	if err != nil {
		log.Fatal(err)
	}
	certificate, ca, err := selfSigned(*host)
	if err != nil {
		log.Fatal(err)
	}
	all := http.NewServeMux()
	all.Handle("/", readOnly(guard(backend.handler(*root, false), *user, *password)))
	all.HandleFunc("/ca.crt", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(ca) })
	pushed := http.StripPrefix("/push", guardAll(backend.handler(*push, true), *user, *password))
	secured := &http.Server{
		Addr:              *secure,
		Handler:           pushed,
		ReadHeaderTimeout: 10 * time.Second,
		TLSConfig:         &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12},
	}
	go func() { log.Fatal(secured.ListenAndServeTLS("", "")) }()
	server := &http.Server{Addr: *address, Handler: all, ReadHeaderTimeout: 10 * time.Second}
	log.Printf("serving %s on %s, and %s on %s", *root, *address, *push, *secure)
	log.Fatal(server.ListenAndServe())
}

// selfSigned returns a certificate for a host, and its PEM encoding.
func selfSigned(host string) (tls.Certificate, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, nil, fmt.Errorf("make a key: %w", err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: host}, DNSNames: []string{host},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(1, 0, 0), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return tls.Certificate{}, nil, fmt.Errorf("make a certificate: %w", err)
	}
	certificate := tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
	return certificate, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), nil
}

// gitBackend is the path of git's CGI program.
type gitBackend string

// httpBackend finds git's CGI program, which is not on PATH.
func httpBackend() (gitBackend, error) {
	out, err := exec.Command("git", "--exec-path").Output()
	if err != nil {
		return "", fmt.Errorf("git is required to serve repositories: %w", err)
	}
	path := filepath.Join(strings.TrimSpace(string(out)), "git-http-backend")
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("git-http-backend is missing; install the complete git package: %w", err)
	}
	return gitBackend(path), nil
}

// handler serves the repositories below root, which may be pushed to if pushable is set.
func (b gitBackend) handler(root string, pushable bool) http.Handler {
	return &cgi.Handler{
		Path: string(b),
		Dir:  root,
		Env: []string{
			"GIT_PROJECT_ROOT=" + root, "GIT_HTTP_EXPORT_ALL=1",
			"GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null",
			"GIT_CONFIG_COUNT=2",
			"GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*",
			"GIT_CONFIG_KEY_1=http.receivepack", "GIT_CONFIG_VALUE_1=" + strconv.FormatBool(pushable),
		},
	}
}

// guard requires a password below /private/.
func guard(next http.Handler, user, password string) http.Handler {
	guarded := guardAll(next, user, password)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasPrefix(r.URL.Path, "/private/") {
			next.ServeHTTP(w, r)
			return
		}
		guarded.ServeHTTP(w, r)
	})
}

// guardAll requires a password.
func guardAll(next http.Handler, user, password string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		u, p, ok := r.BasicAuth()
		correct := subtle.ConstantTimeCompare([]byte(u+"\x00"+p), []byte(user+"\x00"+password)) == 1
		if !ok || !correct || password == "" {
			w.Header().Set("WWW-Authenticate", `Basic realm="git"`)
			http.Error(w, "wrong user or password", http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// readOnly rejects pushes and answers health probes.
func readOnly(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/healthz":
			_, _ = w.Write([]byte("ok\n"))
		case strings.Contains(r.URL.Path, "git-receive-pack") || r.URL.Query().Get("service") == "git-receive-pack":
			http.Error(w, "this host is read only", http.StatusForbidden)
		default:
			next.ServeHTTP(w, r)
		}
	})
}
