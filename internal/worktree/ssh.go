package worktree

import (
	"net/url"
	"regexp"
	"strings"
)

// sshURL and scpURL match the addresses of an origin that is reached by ssh:
// ssh://user@host:port/path, and user@host:path, whose path is relative to the home of the
// user. Neither user nor host nor path can begin with "-", which ssh and git would take for
// an option.
var (
	sshURL = regexp.MustCompile(`^ssh://[A-Za-z0-9_][A-Za-z0-9._-]*@(?:[A-Za-z0-9][A-Za-z0-9.-]*|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?/[^?#]+$`)
	scpURL = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]*@[A-Za-z0-9][A-Za-z0-9.-]*:[^-:?#][^?#]*$`)
)

// cleanSSH reports whether text is the address of an origin that is reached by ssh. It has
// neither spaces nor control characters.
func cleanSSH(text string) bool {
	if scpURL.MatchString(text) {
		return IsSSH(text)
	}
	u, err := url.Parse(text)
	return err == nil && sshURL.MatchString(text) && !strings.ContainsFunc(u.Path, isControl)
}

func isControl(r rune) bool { return r < ' ' || r == 0x7f }

// IsSSH reports whether a repository with this address, if it is a valid one, is reached by
// ssh.
func IsSSH(url string) bool {
	return strings.HasPrefix(url, "ssh://") || !strings.Contains(url, "://")
}

// checkSSH refuses to contact a host by ssh without a key, or without the means to tell the
// host from another one that answers in its place.
func checkSSH(url string, cred Credentials) error {
	switch {
	case !IsSSH(url):
		return nil
	case cred.SSHKeyFile == "":
		return fail(AuthenticationFailed, nil, "there is no private key for %s: add ssh-privatekey to the Secret with its credentials", url)
	case cred.SSHKnownHostsFile == "":
		return fail(AuthenticationFailed, nil, "the host of %s cannot be told from an impostor without known_hosts: add that key to the Secret with the credentials, with the host's public keys as ssh-keyscan prints them", url)
	}
	return nil
}

// sshCommand returns the shell command by which git runs ssh. It reads the given files only:
// no configuration, no agent, no key or known host of this container's user.
func sshCommand(cred Credentials) string {
	options := []string{
		"ssh", "-F", "/dev/null", "-i", cred.SSHKeyFile,
		"-o", "IdentitiesOnly=yes", "-o", "IdentityAgent=none", "-o", "PreferredAuthentications=publickey",
		"-o", "StrictHostKeyChecking=yes", "-o", "UserKnownHostsFile=" + cred.SSHKnownHostsFile, "-o", "GlobalKnownHostsFile=/dev/null",
		"-o", "UpdateHostKeys=no", "-o", "VerifyHostKeyDNS=no", "-o", "CheckHostIP=no",
		"-o", "BatchMode=yes", "-o", "ConnectTimeout=15", "-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=4",
		"-o", "ForwardAgent=no", "-o", "ClearAllForwardings=yes", "-o", "ProxyCommand=none", "-o", "LogLevel=INFO",
	}
	for i, option := range options {
		options[i] = shellQuote(option)
	}
	return strings.Join(options, " ")
}

// sshErrors maps the words of ssh and of hosts of repositories to reasons, and to what to do.
var sshErrors = []struct {
	words  string
	reason Reason
	format string // of a sentence about the URL
}{
	{"HOST IDENTIFICATION HAS CHANGED", AuthenticationFailed, "the host of %s has another key than known_hosts says. Another host may be answering in its place: ask its operator, and change known_hosts in the Secret only if the key was replaced"},
	{"HOST KEY HAS BEEN REVOKED", AuthenticationFailed, "the host of %s has a key that known_hosts says is revoked: ask its operator for the new one"},
	{"Host key verification failed", AuthenticationFailed, "known_hosts has no key of the host of %s: add the host's public keys to known_hosts in the Secret"},
	{`Load key "`, AuthenticationFailed, "the private key for %s cannot be read: ssh-privatekey has to be a private key without a passphrase, with a line feed at its end"},
	{"Permission denied (", AuthenticationFailed, "the host of %s refuses the private key: add its public key to the repository, or put another one, without a passphrase, into ssh-privatekey of the Secret"},
	{"marked as read only", AuthenticationFailed, "the private key for %s may not push: allow it to write, or use another one"},
	{"does not have write access", AuthenticationFailed, "the private key for %s may not push: allow it to write, or use another one"},
	{"No user exists for uid", GitFailed, "ssh does not know the user that the pod runs as, so that %s cannot be reached: Clew's image lacks the package libnss-unknown"},
	{"cannot run ssh", GitFailed, "Clew's image has no ssh, so that %s cannot be reached: it lacks the package openssh-client"},
	{"ssh: not found", GitFailed, "Clew's image has no ssh, so that %s cannot be reached: it lacks the package openssh-client"},
}

// failSSH returns the error for a failure that ssh, or a host reached by it, reports, or nil.
func failSSH(err error, url string) error {
	text := stderrOf(err)
	for _, known := range sshErrors {
		if IsSSH(url) && strings.Contains(text, known.words) {
			return fail(known.reason, err, known.format, url)
		}
	}
	return nil
}
