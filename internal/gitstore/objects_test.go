package gitstore

import (
	"crypto/sha1"
	"encoding/binary"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/clew-dev/clew/internal/gitstoreapi"
)

// object writes a raw object without any checks.
func (c *client) object(kind, content string) string {
	c.t.Helper()
	return c.gitWith(content, "hash-object", "-w", "--stdin", "--literally", "-t", kind)
}

// entry returns one entry of a raw tree.
func entry(mode, name, id string) string {
	var raw strings.Builder
	fmt.Fprintf(&raw, "%s %s\x00", mode, name)
	for i := 0; i < len(id); i += 2 {
		var value byte
		fmt.Sscanf(id[i:i+2], "%02x", &value)
		raw.WriteByte(value)
	}
	return raw.String()
}

// commitOf writes a commit of a raw tree.
func (c *client) commitOf(tree string) string {
	return c.object("commit", "tree "+tree+"\nauthor Ada <a@example.com> 1700000000 +0000\ncommitter Ada <a@example.com> 1700000000 +0000\n\nwork\n")
}

func TestDangerousObjectsAreRefused(t *testing.T) {
	server := newTestServer(t, Limits{})
	task := server.client(taskToken("fix", 1))
	blob := task.object("blob", "x\n")
	tree := func(entries ...string) string { return task.object("tree", strings.Join(entries, "")) }
	for name, root := range map[string]string{
		"folder .git":                 tree(entry("40000", ".git", tree(entry("100755", "x", blob)))),
		"folder .GIT":                 tree(entry("40000", ".GIT", tree(entry("100755", "x", blob)))),
		"folder git~1":                tree(entry("40000", "git~1", tree(entry("100755", "x", blob)))),
		"folder .git as HFS reads it": tree(entry("40000", ".g\u200cit", tree(entry("100755", "x", blob)))),
		"folder ..":                   tree(entry("40000", "..", tree(entry("100755", "x", blob)))),
		"folder .":                    tree(entry("40000", ".", tree(entry("100755", "x", blob)))),
		"name with a slash":           tree(entry("100644", "a/b", blob)),
		"deep down":                   tree(entry("40000", "d", tree(entry("40000", ".git", tree(entry("100644", "config", blob)))))),
		"entry twice":                 tree(entry("100644", "a", blob), entry("100644", "a", blob)),
		"not sorted":                  tree(entry("100644", "b", blob), entry("100644", "a", blob)),
	} {
		t.Run(name, func(t *testing.T) {
			ref := codeRef("fix", 1)
			stderr := task.refusedPush(gitstoreapi.ObjectsRefused, "remote: ", task.commitOf(root)+":"+ref)
			if got := server.remoteRef(ref); got != "" {
				t.Errorf("the ref was created and points to %s\n%s", got, stderr)
			}
		})
	}
	fsck(t, server.bare(repository))
}

// Oddities that old tools wrote into real histories do not prevent checkpoints.
func TestOldOdditiesAreAccepted(t *testing.T) {
	server := newTestServer(t, Limits{})
	task := server.client(taskToken("fix", 1))
	blob := task.object("blob", "x\n")
	plain := task.object("tree", entry("100644", "a", blob))
	who := "Ada <a@example.com> 1700000000 +0000"
	commit := func(tree, author, committer, rest string) string {
		return task.object("commit", "tree "+tree+"\nauthor "+author+"\ncommitter "+committer+"\n\nwork"+rest+"\n")
	}
	number := 0
	for name, id := range map[string]string{
		"zero-padded mode":          task.commitOf(task.object("tree", entry("040000", "d", plain))),
		"group-writable mode":       task.commitOf(task.object("tree", entry("100664", "a", blob))),
		"no address":                commit(plain, "Ada 1700000000 +0000", who, ""),
		"no name":                   commit(plain, "<a@example.com> 1700000000 +0000", who, ""),
		"angle brackets in address": commit(plain, "Ada <a<b@example.com> 1700000000 +0000", who, ""),
		"no space before address":   commit(plain, "Ada<a@example.com> 1700000000 +0000", who, ""),
		"no space before date":      commit(plain, "Ada <a@example.com>1700000000 +0000", who, ""),
		"zero-padded date":          commit(plain, "Ada <a@example.com> 0700000000 +0000", who, ""),
		"date far away":             commit(plain, "Ada <a@example.com> 18446744073709551616 +0000", who, ""),
		"odd time zone":             commit(plain, "Ada <a@example.com> 1700000000 +051800", who, ""),
		"two authors":               commit(plain, who+"\nauthor "+who, who, ""),
		"NUL in message":            commit(plain, who, who, "a\x00b"),
		"modules that are not a configuration file": task.commitOf(task.object("tree",
			entry("100644", ".gitmodules", task.object("blob", "<<<<<<< ours\n[submodule\n")))),
		"submodule": task.commitOf(task.object("tree",
			entry("100644", ".gitmodules", task.object("blob", "[submodule \"x\"]\n\tpath = x\n\turl = ../x.git\n"))+
				entry("160000", "x", strings.Repeat("a", 40)))),
		"symbolic link to outside": task.commitOf(task.object("tree", entry("120000", "l", task.object("blob", "/etc/passwd")))),
		"attributes as a link":     task.commitOf(task.object("tree", entry("120000", ".gitattributes", blob))),
		"odd file names":           task.commitOf(task.object("tree", entry("100644", " a\nb\xff", blob))),
		"tag without tagger": task.object("tag", "object "+task.commitOf(plain)+
			"\ntype commit\ntag v 1\n\nold\n"),
	} {
		number++
		ref := codeRef("fix", number)
		t.Run(name, func(t *testing.T) {
			client := *task
			client.t = t
			client.push(id + ":" + ref)
		})
	}
}

// What an agent writes into its worktree is part of its checkpoint, even if it would harm
// whoever acted on it.
func TestAnAgentsOwnFilesAreAccepted(t *testing.T) {
	server := newTestServer(t, Limits{})
	task := server.client(taskToken("fix", 1))
	blob := task.object("blob", "x\n")
	tree := func(entries ...string) string { return task.object("tree", strings.Join(entries, "")) }
	modules := func(content string) string {
		return tree(entry("100644", ".gitmodules", task.object("blob", content)))
	}
	number := 0
	for name, root := range map[string]string{
		"module url is an option":     modules("[submodule \"x\"]\n\tpath = x\n\turl = -u./payload\n"),
		"module path is an option":    modules("[submodule \"x\"]\n\tpath = -x\n\turl = https://example.com/x\n"),
		"module name leaves":          modules("[submodule \"../../x\"]\n\tpath = x\n\turl = https://example.com/x\n"),
		"module runs a command":       modules("[submodule \"x\"]\n\tpath = x\n\turl = https://example.com/x\n\tupdate = !payload\n"),
		"module url with line break":  modules("[submodule \"x\"]\n\tpath = x\n\turl = \"https://example.com/%0a%0dhost=evil\"\n"),
		"modules are a symbolic link": tree(entry("120000", ".gitmodules", blob)),
		"attributes on a long line":   tree(entry("100644", ".gitattributes", task.object("blob", strings.Repeat("a", 5000)+" text\n"))),
	} {
		number++
		ref := codeRef("fix", number)
		t.Run(name, func(t *testing.T) {
			client := *task
			client.t = t
			client.push(task.commitOf(root) + ":" + ref)
		})
	}
}

func TestMissingObjectsAreRefused(t *testing.T) {
	server := newTestServer(t, Limits{})
	task := server.client(taskToken("fix", 1))
	commit := task.commitOf(strings.Repeat("1", 40))
	status, answer := server.rawPush(taskToken("fix", 1), commit, codeRef("fix", 1), task.packOf(commit))
	if status != http.StatusOK || strings.Contains(answer, "unpack ok") {
		t.Errorf("got %d %q, want 200 without \"unpack ok\"", status, answer)
	}
	if got := server.remoteRef(codeRef("fix", 1)); got != "" {
		t.Error("a commit without its tree was stored")
	}
}

func TestDamagedPackIsRefused(t *testing.T) {
	server := newTestServer(t, Limits{})
	task := server.client(taskToken("fix", 1))
	commit := task.commit("a", strings.Repeat("some text\n", 1000), "b", "more\n")
	whole := task.packOf(commit, task.git("rev-parse", commit+"^{tree}"), task.git("rev-parse", commit+":a"), task.git("rev-parse", commit+":b"))
	damaged := []byte(whole)
	damaged[len(damaged)/2] ^= 0x40
	resealed := append([]byte{}, damaged[:len(damaged)-sha1.Size]...)
	sum := sha1.Sum(resealed)
	for name, content := range map[string]string{
		"a flipped bit":                   string(damaged),
		"a flipped bit under a right sum": string(append(resealed, sum[:]...)),
		"cut off":                         whole[:len(whole)/2],
		"nothing":                         "",
		"not a pack":                      "GET / HTTP/1.1\r\n\r\n",
		"more objects declared than sent": whole[:8] + string(binary.BigEndian.AppendUint32(nil, 9)) + whole[12:],
	} {
		t.Run(name, func(t *testing.T) {
			_, answer := server.rawPush(taskToken("fix", 1), commit, codeRef("fix", 1), content)
			if strings.Contains(answer, "unpack ok") {
				t.Errorf("git unpacked the pack: %q", answer)
			}
			if got := server.remoteRef(codeRef("fix", 1)); got != "" {
				t.Error("a damaged pack was stored")
			}
		})
	}
	if status, answer := server.rawPush(taskToken("fix", 1), commit, codeRef("fix", 1), whole); !strings.Contains(answer, "unpack ok") {
		t.Fatalf("the whole pack: got %d %q, want \"unpack ok\"", status, answer)
	}
	fsck(t, server.bare(repository))
}

// packOf returns a pack of exactly these objects.
func (c *client) packOf(ids ...string) string {
	c.t.Helper()
	base := filepath.Join(c.dir, ".git", "test-pack")
	name := c.gitWith(strings.Join(ids, "\n")+"\n", "pack-objects", "--quiet", base)
	content, err := os.ReadFile(base + "-" + name + ".pack")
	if err != nil {
		c.t.Fatal(err)
	}
	return string(content)
}

// rawPush sends a push of one new ref without git's client, and returns status and body of
// the response.
func (s *testServer) rawPush(token, id, ref, pack string) (int, string) {
	s.t.Helper()
	s.advertise(token)
	line := strings.Repeat("0", 40) + " " + id + " " + ref + "\x00 report-status side-band-64k atomic"
	return s.post(token, "git-receive-pack", string(packet([]byte(line)))+"0000"+pack)
}
