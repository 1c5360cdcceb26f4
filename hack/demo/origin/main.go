// Command origin serves the bare git repositories of a folder over smart HTTP, read
// only, with git's own http-backend. The demo and the end-to-end tests use it as the
// git host that tasks clone from.
//
// Repositories under ROOT/private/ require HTTP basic authentication with the user
// and password from the flags.
package main

import (
	"crypto/subtle"
	"flag"
	"fmt"
	"log"
	"net/http"
	"net/http/cgi"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

func main() {
	root := flag.String("root", "/srv/git", "folder of bare repositories")
	address := flag.String("address", ":8080", "address to listen on")
	user := flag.String("user", "demo", "user who may read ROOT/private")
	password := flag.String("password", "", "password of that user; empty denies everyone")
	flag.Parse()

	backend, err := httpBackend()
	if err != nil {
		log.Fatal(err)
	}
	server := &http.Server{
		Addr:              *address,
		Handler:           readOnly(guard(backend.handler(*root), *user, *password)),
		ReadHeaderTimeout: 10 * time.Second,
	}
	log.Printf("serving %s on %s", *root, *address)
	log.Fatal(server.ListenAndServe())
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

// handler serves the repositories below root.
func (b gitBackend) handler(root string) http.Handler {
	return &cgi.Handler{
		Path: string(b),
		Dir:  root,
		Env: []string{
			"GIT_PROJECT_ROOT=" + root, "GIT_HTTP_EXPORT_ALL=1",
			"GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null",
			"GIT_CONFIG_COUNT=2",
			"GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*",
			"GIT_CONFIG_KEY_1=http.receivepack", "GIT_CONFIG_VALUE_1=false",
		},
	}
}

// guard requires a password below /private/.
func guard(next http.Handler, user, password string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasPrefix(r.URL.Path, "/private/") {
			next.ServeHTTP(w, r)
			return
		}
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
