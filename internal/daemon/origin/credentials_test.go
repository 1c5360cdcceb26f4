package origin

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/worktree"
)

func TestCredentialsAreReadFromTheSecret(t *testing.T) {
	dir := t.TempDir()
	in := func(key string) string { return filepath.Join(dir, key) }
	for name, tt := range map[string]struct {
		keys   map[string]string
		want   worktree.Credentials
		caFile string
	}{
		"none":                   {},
		"a user and a password":  {keys: map[string]string{"username": "me\n", "password": "pw\n"}, want: worktree.Credentials{Username: "me", Password: "pw"}},
		"a token":                {keys: map[string]string{"token": "t"}, want: worktree.Credentials{Password: "t"}},
		"a private CA":           {keys: map[string]string{"token": "t", "ca.crt": "pem"}, want: worktree.Credentials{Password: "t"}, caFile: in("ca.crt")},
		"a key and known hosts":  {keys: map[string]string{"ssh-privatekey": "k", "known_hosts": "h"}, want: worktree.Credentials{SSHKeyFile: in("ssh-privatekey"), SSHKnownHostsFile: in("known_hosts")}},
		"a key and an empty one": {keys: map[string]string{"ssh-privatekey": "k", "known_hosts": "\n"}, want: worktree.Credentials{SSHKeyFile: in("ssh-privatekey")}},
	} {
		t.Run(name, func(t *testing.T) {
			for key, value := range tt.keys {
				if err := os.WriteFile(in(key), []byte(value), 0o600); err != nil {
					t.Fatal(err)
				}
				defer os.Remove(in(key))
			}
			got, caFile, err := Credentials(dir)
			if err != nil || got != tt.want || caFile != tt.caFile {
				t.Errorf("the credentials are %+v, %q, %v, want %+v, %q", got, caFile, err, tt.want, tt.caFile)
			}
		})
	}
}

func TestWhatASecretLacksIsSaid(t *testing.T) {
	key, known := worktree.Credentials{SSHKeyFile: "k"}, worktree.Credentials{SSHKeyFile: "k", SSHKnownHostsFile: "h"}
	for name, tt := range map[string]struct {
		url, secret string
		c           worktree.Credentials
		caFile      string
		want        string
	}{
		"a public repository":   {url: "https://host/x"},
		"a token":               {url: "https://host/x", secret: "s", c: worktree.Credentials{Password: "t"}},
		"a private CA only":     {url: "https://host/x", secret: "s", caFile: "ca"},
		"nothing":               {url: "https://host/x", secret: "s", want: `create the Secret "s" with the keys username and password, or token`},
		"a key for https":       {url: "https://host/x", secret: "s", c: known, want: `create the Secret "s" with the keys username and password, or token`},
		"ssh":                   {url: "ssh://git@host/x", secret: "s", c: known},
		"as scp does":           {url: "git@host:x", secret: "s", c: known},
		"a token for ssh":       {url: "git@host:x", secret: "s", c: worktree.Credentials{Password: "t"}, want: `create the Secret "s" of the type kubernetes.io/ssh-auth`},
		"ssh without a Secret":  {url: "ssh://git@host/x", want: "there is no private key for ssh://git@host/x"},
		"ssh with any host key": {url: "ssh://git@host/x", secret: "s", c: key, want: `cannot be told from an impostor: add the key known_hosts to the Secret "s"`},
	} {
		t.Run(name, func(t *testing.T) {
			got := Missing(daemonapi.Repository{URL: tt.url, CredentialsSecret: tt.secret}, tt.c, tt.caFile)
			if (got == "") != (tt.want == "") || !strings.Contains(got, tt.want) {
				t.Errorf("it is said: %q, want %q", got, tt.want)
			}
		})
	}
}
