package worktree

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
)

// sshHost is a host of git repositories: a real sshd, which is started for each connection.
type sshHost struct {
	dir     string // holds the repository project.git
	user    string
	address string // of a free port of 127.0.0.1
	key     string // a private key that the host accepts
	known   string // a file with the host's public key
	seen    atomic.Int64
}

// newSSHHost starts a host with a bare repository. As root, its sshd runs as the user
// postgres, which "make prerequisites" creates: an sshd without privileges lets in its own
// user only.
func newSSHHost(t *testing.T) *sshHost {
	t.Helper()
	if testing.Short() {
		t.Skip("needs sshd, which make prerequisites installs")
	}
	h := &sshHost{dir: t.TempDir()}
	for _, dir := range []string{h.dir, filepath.Dir(h.dir)} { // for the other user
		must(t, os.Chmod(dir, 0o755))
	}
	account, err := user.Current()
	must(t, err)
	if os.Getuid() == 0 {
		account, err = user.Lookup("postgres")
		must(t, err)
	}
	h.user = account.Username
	uid, err := strconv.Atoi(account.Uid)
	must(t, err)
	gid, err := strconv.Atoi(account.Gid)
	must(t, err)

	gitIn(t, h.dir, "clone", "-q", "--bare", makeOrigin(t, 3), h.repository())
	must(t, filepath.WalkDir(h.repository(), func(path string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Chown(path, uid, gid)
	}))
	hostKey, authorized := newSSHKey(t, h.dir, "host"), filepath.Join(h.dir, "authorized_keys")
	must(t, os.Chown(hostKey, uid, gid))
	h.key = newSSHKey(t, t.TempDir(), "accepted")
	writeFile(t, authorized, publicKey(t, h.key), 0o644)
	config := filepath.Join(h.dir, "sshd_config")
	writeFile(t, config, fmt.Sprintf("HostKey %s\nAuthorizedKeysFile %s\nStrictModes no\nUsePAM no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\nPidFile none\n", hostKey, authorized), 0o644)

	attributes := &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if os.Getuid() != uid {
		attributes.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	}
	h.serve(t, config, attributes)
	h.known = filepath.Join(t.TempDir(), "known_hosts")
	h.knows(t, h.known, hostKey)
	return h
}

func (h *sshHost) repository() string { return filepath.Join(h.dir, "project.git") }

// serve starts an sshd for each connection, as inetd does, so that no port can be taken in
// between.
func (h *sshHost) serve(t *testing.T, config string, attributes *syscall.SysProcAttr) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	h.address = listener.Addr().String()
	log, err := os.Create(filepath.Join(t.TempDir(), "sshd.log"))
	must(t, err)
	t.Cleanup(func() {
		listener.Close()
		if said, _ := os.ReadFile(log.Name()); t.Failed() {
			t.Logf("sshd says:\n%s", said)
		}
	})
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			h.seen.Add(1)
			file, err := conn.(*net.TCPConn).File()
			conn.Close()
			if err != nil {
				continue
			}
			cmd := exec.Command("/usr/sbin/sshd", "-i", "-e", "-f", config)
			cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = file, file, log, attributes
			if err := cmd.Start(); err != nil {
				t.Errorf("start sshd: %v", err)
			}
			file.Close()
			go func() { _ = cmd.Wait() }() // one that refuses its caller fails
		}
	}()
}

// knows writes a file of known hosts, in which the host has the public key of a private one.
func (h *sshHost) knows(t *testing.T, file, key string) {
	t.Helper()
	host, port, err := net.SplitHostPort(h.address)
	must(t, err)
	writeFile(t, file, fmt.Sprintf("[%s]:%s %s", host, port, publicKey(t, key)), 0o644)
}

func (h *sshHost) url() string { return "ssh://" + h.user + "@" + h.address + h.repository() }

func (h *sshHost) credentials() Credentials {
	return Credentials{SSHKeyFile: h.key, SSHKnownHostsFile: h.known}
}

// newSSHKey makes a pair of keys and returns the file of the private one.
func newSSHKey(t *testing.T, dir, name string, options ...string) string {
	t.Helper()
	file := filepath.Join(dir, name)
	if len(options) == 0 {
		options = []string{"-N", ""}
	}
	out, err := exec.Command("ssh-keygen", append([]string{"-q", "-t", "ed25519", "-f", file}, options...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("ssh-keygen: %v\n%s", err, out)
	}
	return file
}

func publicKey(t *testing.T, key string) string {
	t.Helper()
	text, err := os.ReadFile(key + ".pub")
	must(t, err)
	return string(text)
}

// wrapSSH puts a script before ssh in the PATH, which ends by running ssh with its arguments.
func wrapSSH(t *testing.T, script string) {
	t.Helper()
	ssh, err := exec.LookPath("ssh")
	must(t, err)
	dir := t.TempDir()
	writeFile(t, dir+"/ssh", "#!/bin/sh\n"+strings.ReplaceAll(script, "@ssh@", "exec "+ssh), 0o755)
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

func TestAnOriginIsClonedBySSH(t *testing.T) {
	h := newSSHHost(t)
	f := newFixture(t)
	got, err := f.repo.Clone(context.Background(), CloneRequest{URL: h.url(), Credentials: h.credentials()})
	must(t, err)
	want := strings.TrimSpace(f.git("rev-parse", "origin/trunk"))
	wantEqual(t, "origin", Origin{URL: h.url(), Ref: "refs/heads/trunk", Branch: "trunk", Base: want}, got)
	wantEqual(t, "git status", "", f.git("status", "--porcelain"))
	wantEqual(t, "the agent's remote", h.url()+"\n", f.git("remote", "get-url", "origin"))
}

// Such an address has no port: the script adds it.
func TestAnOriginIsClonedFromAnAddressLikeThatOfSCP(t *testing.T) {
	h := newSSHHost(t)
	_, port, err := net.SplitHostPort(h.address)
	must(t, err)
	wrapSSH(t, "@ssh@ -p "+port+" \"$@\"\n")
	f := newFixture(t)
	url := h.user + "@127.0.0.1:" + h.repository()
	got, err := f.repo.Clone(context.Background(), CloneRequest{URL: url, Ref: "side/branch", Credentials: h.credentials()})
	must(t, err)
	wantEqual(t, "origin's URL", url, got.URL)
	wantEqual(t, "the agent's remote", url+"\n", f.git("remote", "get-url", "origin"))
}

func TestASSHHostThatIsNotTheKnownOneIsRefused(t *testing.T) {
	h := newSSHHost(t)
	dir := t.TempDir()
	other := newSSHKey(t, dir, "other")
	h.knows(t, dir+"/another-key", other)
	writeFile(t, dir+"/another-host", "git.example.com "+publicKey(t, other), 0o644)
	writeFile(t, dir+"/empty", "", 0o644)
	writeFile(t, dir+"/garbage", "not a key", 0o600)
	withPassphrase := newSSHKey(t, dir, "locked", "-N", "s3cret-phrase")
	for name, tt := range map[string]struct {
		with   func(*Credentials)
		reason Reason
		want   string
		silent bool // the host is not contacted
	}{
		"another key of the host":     {func(c *Credentials) { c.SSHKnownHostsFile = dir + "/another-key" }, AuthenticationFailed, "has another key than known_hosts says", false},
		"an unknown host":             {func(c *Credentials) { c.SSHKnownHostsFile = dir + "/another-host" }, AuthenticationFailed, "known_hosts has no key of the host of", false},
		"an empty file":               {func(c *Credentials) { c.SSHKnownHostsFile = dir + "/empty" }, AuthenticationFailed, "known_hosts has no key of the host of", false},
		"no known hosts":              {func(c *Credentials) { c.SSHKnownHostsFile = "" }, AuthenticationFailed, "cannot be told from an impostor without known_hosts: add that key to the Secret", true},
		"no private key":              {func(c *Credentials) { c.SSHKeyFile = "" }, AuthenticationFailed, "there is no private key for", true},
		"a key that it refuses":       {func(c *Credentials) { c.SSHKeyFile = other }, AuthenticationFailed, "refuses the private key", false},
		"a key that is none":          {func(c *Credentials) { c.SSHKeyFile = dir + "/garbage" }, AuthenticationFailed, "has to be a private key without a passphrase", false},
		"a key that has a passphrase": {func(c *Credentials) { c.SSHKeyFile = withPassphrase }, AuthenticationFailed, "put another one, without a passphrase, into ssh-privatekey", false},
	} {
		t.Run(name, func(t *testing.T) {
			cred := h.credentials()
			tt.with(&cred)
			before := h.seen.Load()
			f := newFixture(t)
			_, err := f.repo.Clone(context.Background(), CloneRequest{URL: h.url(), Credentials: cred})
			wantReason(t, err, tt.reason)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("the clone's error does not contain %q: %v", tt.want, err)
			}
			_, err = f.repo.PushOrigin(context.Background(), OriginPush{URL: h.url(), Credentials: cred, Publication: Publication{Commit: strings.Repeat("12", 20)}, Ref: "refs/heads/x"})
			wantReason(t, err, tt.reason)
			if tt.silent && h.seen.Load() != before {
				t.Error("the host was contacted")
			}
		})
	}
}

func TestASSHHostWithoutTheRepositoryOrAnAnswer(t *testing.T) {
	h := newSSHHost(t)
	f := newFixture(t)
	_, err := f.repo.Clone(context.Background(), CloneRequest{URL: h.url() + "-other.git", Credentials: h.credentials()})
	wantReason(t, err, RepositoryNotFound)
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	must(t, closed.Close())
	_, err = f.repo.Clone(context.Background(), CloneRequest{URL: "ssh://git@" + closed.Addr().String() + "/x.git", Credentials: h.credentials()})
	wantReason(t, err, Unreachable)
	_, err = f.repo.Clone(context.Background(), CloneRequest{URL: "ssh://git@clew.invalid/x.git", Credentials: h.credentials()})
	wantReason(t, err, Unreachable)
}

func TestAPublicationIsPushedBySSH(t *testing.T) {
	h := newSSHHost(t)
	p := newPublisher(t)
	made := p.publication()
	push := func(o *OriginPush) { o.URL, o.Credentials, o.CAFile = h.url(), h.credentials(), "" }
	pushed, err := p.send(made, push)
	must(t, err)
	wantEqual(t, "pushed", OriginPushed{}, pushed)
	wantEqual(t, "the branch", made.Commit, strings.TrimSpace(gitIn(t, h.dir, "-c", "safe.directory=*", "-C", h.repository(), "rev-parse", p.push.Ref)))
	pushed, err = p.send(made, push)
	must(t, err)
	wantEqual(t, "pushed already", true, pushed.Already)
	writeFile(t, h.repository()+"/hooks/pre-receive", "#!/bin/sh\necho 'no pushes on Friday'; exit 1\n", 0o755)
	_, err = p.send(made, push, func(o *OriginPush) { o.Ref = "refs/heads/another" })
	wantReason(t, err, Rejected)
}

// What the process' user has configured for ssh, or keeps in an agent, is not Clew's.
func TestSSHReadsTheGivenFilesOnly(t *testing.T) {
	h := newSSHHost(t)
	log := filepath.Join(t.TempDir(), "log")
	wrapSSH(t, "{ printf '%s\\n' \"$@\"; env; } >>'"+log+"'\n@ssh@ \"$@\"\n")
	t.Setenv("SSH_AUTH_SOCK", "/run/agent-of-the-user")
	t.Setenv("GIT_SSH_COMMAND", "false")
	f := newFixture(t)
	_, err := f.repo.Clone(context.Background(), CloneRequest{URL: h.url(), Credentials: h.credentials()})
	must(t, err)
	said, err := os.ReadFile(log)
	must(t, err)
	for _, want := range []string{"-F\n/dev/null\n", "-i\n" + h.key + "\n", "IdentitiesOnly=yes\n", "IdentityAgent=none\n", "StrictHostKeyChecking=yes\n", "UserKnownHostsFile=" + h.known + "\n", "GlobalKnownHostsFile=/dev/null\n", "BatchMode=yes\n", "ConnectTimeout=15\n"} {
		if !strings.Contains(string(said), want) {
			t.Errorf("ssh was not given %q: %s", want, said)
		}
	}
	secret, err := os.ReadFile(h.key)
	must(t, err)
	line := strings.Split(string(secret), "\n")[2]
	for _, bad := range []string{"SSH_AUTH_SOCK", "HOME=", line} {
		if strings.Contains(string(said), bad) {
			t.Errorf("ssh was given %q", bad)
		}
	}
}

func TestAnAddressCannotBeAnOptionOfSSH(t *testing.T) {
	mark := filepath.Join(t.TempDir(), "mark")
	key := filepath.Join(t.TempDir(), "key")
	writeFile(t, key, "x", 0o600)
	for _, url := range []string{
		"ssh://-oProxyCommand=touch${IFS}" + mark + "/x", "ssh://git@-oProxyCommand=touch${IFS}" + mark + "/x",
		"-oProxyCommand=touch${IFS}" + mark + "@host:x", "git@host:-oProxyCommand=touch${IFS}" + mark, "ext::touch${IFS}" + mark,
	} {
		f := newFixture(t)
		_, err := f.repo.Clone(context.Background(), CloneRequest{URL: url, Credentials: Credentials{SSHKeyFile: key, SSHKnownHostsFile: key}})
		wantReason(t, err, InvalidURL)
		_, err = f.repo.PushOrigin(context.Background(), OriginPush{URL: url, Credentials: Credentials{SSHKeyFile: key, SSHKnownHostsFile: key}, Publication: Publication{Commit: strings.Repeat("12", 20)}, Ref: "refs/heads/x"})
		wantReason(t, err, InvalidURL)
	}
	if _, err := os.Stat(mark); err == nil {
		t.Error("a program was run")
	}
}

func TestWhatTheImageLacksForSSHIsSaid(t *testing.T) {
	for said, want := range map[string]string{
		"No user exists for uid 1000":                                              "lacks the package libnss-unknown",
		"error: cannot run ssh: No such file or directory":                         "lacks the package openssh-client",
		"sh: 1: ssh: not found":                                                    "lacks the package openssh-client",
		"ERROR: The key you are authenticating with has been marked as read only.": "may not push",
	} {
		err := failRemote(&gitError{command: "fetch", stderr: said + "\nfatal: Could not read from remote repository.", err: os.ErrInvalid}, "git@host:x")
		if !strings.Contains(err.Error(), want) {
			t.Errorf("after %q the error is %v, want %q", said, err, want)
		}
	}
}
