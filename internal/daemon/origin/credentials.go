// Package origin reads what a pod knows of the repository that a task's code comes from.
package origin

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/worktree"
)

// The keys of the Secret with the credentials of a repository. The key of ssh is that of
// Secrets of the type kubernetes.io/ssh-auth.
const (
	userKey       = "username"
	passwordKey   = "password"
	tokenKey      = "token"
	caKey         = "ca.crt"
	sshKey        = "ssh-privatekey"
	knownHostsKey = "known_hosts"
)

// Credentials reads the credentials of the task's repository from the folder in which its
// Secret is mounted; "" for none. caFile is the path of its CA certificate, or "".
func Credentials(dir string) (c worktree.Credentials, caFile string, err error) {
	read := func(key string) string {
		b, readErr := os.ReadFile(filepath.Join(dir, key))
		if readErr != nil && !errors.Is(readErr, os.ErrNotExist) {
			err = fmt.Errorf("read the repository's credentials: %w", readErr)
		}
		return strings.TrimSuffix(string(b), "\n")
	}
	file := func(key string) string {
		if read(key) == "" {
			return ""
		}
		return filepath.Join(dir, key)
	}
	if dir == "" {
		return c, "", nil
	}
	c.Username, c.Password = read(userKey), read(passwordKey)
	if token := read(tokenKey); token != "" && c.Password == "" {
		c.Password = token
	}
	c.SSHKeyFile, c.SSHKnownHostsFile = file(sshKey), file(knownHostsKey)
	return c, file(caKey), err
}

// Missing returns a sentence about what the Secret lacks that the repository needs; "" if it
// lacks nothing.
func Missing(r daemonapi.Repository, c worktree.Credentials, caFile string) string {
	secret := r.CredentialsSecret
	switch ssh := worktree.IsSSH(r.URL); {
	case ssh && c.SSHKeyFile == "":
		return fmt.Sprintf("there is no private key for %s: create the Secret %q of the type kubernetes.io/ssh-auth with the keys %s and %s", r.URL, secret, sshKey, knownHostsKey)
	case ssh && c.SSHKnownHostsFile == "":
		return fmt.Sprintf("the host of %s cannot be told from an impostor: add the key %s to the Secret %q, with the host's public keys as ssh-keyscan prints them, once you have compared them with those that its operator publishes", r.URL, knownHostsKey, secret)
	case !ssh && secret != "" && c.Password == "" && caFile == "":
		return fmt.Sprintf("there are no credentials for %s: create the Secret %q with the keys username and password, or token", r.URL, secret)
	}
	return ""
}
