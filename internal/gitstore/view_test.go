package gitstore

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/clew-dev/clew/internal/gitstoreapi"
	"github.com/clew-dev/clew/internal/refname"
	"github.com/clew-dev/clew/internal/testing/gitbomb"
)

// shared is a repository of two tasks of one origin: own, and another whose secret is in a
// commit, a tree and a file.
type shared struct {
	*testServer
	own    *client
	origin string
	commit string
	tree   string
	file   string
}

func twoTasks(t *testing.T) shared {
	t.Helper()
	s := shared{testServer: newTestServer(t, Limits{})}
	other := s.client(taskToken("other", 1))
	s.origin = other.commit("README", "words of the origin")
	s.commit = other.commitAs(checkpointCommitter, "secret", "the other task's words")
	other.push("HEAD:"+codeRef("other", 1), "HEAD:"+stateRef("other", 1), "HEAD:refs/heads/clew/other/branch")
	s.tree, s.file = other.git("rev-parse", "HEAD^{tree}"), other.git("rev-parse", "HEAD:secret")
	s.own = s.client(taskToken("own", 1))
	s.own.commit("mine", "my own words")
	s.own.push("HEAD:"+codeRef("own", 1), "HEAD:"+stateRef("own", 1))
	return s
}

// commitAs commits a file as somebody.
func (c *client) commitAs(email, path, content string) string {
	c.t.Helper()
	other := *c
	other.env = append(append([]string{}, c.env...), "GIT_COMMITTER_EMAIL="+email)
	return other.commit(path, content)
}

func TestNobodyGetsObjectsByTheirHash(t *testing.T) {
	s := twoTasks(t)
	hidden := s.client(taskToken("gone", 1))
	unreached := hidden.commit("lost", "words that no ref leads to")
	for name, token := range map[string]string{"a task": taskToken("own", 1), "a stranger to the repository": taskToken("new", 1), "a fork of another": forkToken("new", "own")} {
		for _, version := range []string{"0", "1", "2"} {
			for what, id := range map[string]string{"commit": s.commit, "tree": s.tree, "file": s.file, "commit of nobody": unreached} {
				thief := s.client(token)
				args := []string{"-c", "protocol.version=" + version, "fetch", "--quiet", "--no-tags", thief.url, id}
				if version == "2" {
					args = append(args, "--filter=tree:0")
				}
				if _, stderr, err := thief.try(args...); err == nil {
					t.Errorf("%s got the %s by version %s", name, what, version)
				} else if !containsAny(stderr, "not our ref", "unadvertised object", "no matching remote head") {
					t.Errorf("%s asked for the %s by version %s and was not refused it, but failed with: %s", name, what, version, stderr)
				}
			}
		}
	}
	// A reader may read everything that the namespace's refs reach; a request for a file by
	// its hash is answered as if the file did not exist.
	reader := s.client(readerToken)
	reader.git("fetch", "--quiet", reader.url, s.commit)
	if _, _, err := s.client(readerToken).try("-c", "protocol.version=2", "fetch", "--quiet", reader.url, s.file); err == nil {
		t.Error("a reader got a file by its hash")
	}
}

// TestAReaderOfCodeDoesNotSeeWhatAgentsRemember: the refs of agents' state have files with their
// conversations.
func TestAReaderOfCodeDoesNotSeeWhatAgentsRemember(t *testing.T) {
	s := newTestServer(t, Limits{})
	task := s.client(taskToken("fix", 1))
	code := task.commit("a.go", "code")
	head := refname.Head("uid-fix", code)
	task.push("HEAD:"+codeRef("fix", 1), "HEAD:"+head, "HEAD:refs/heads/clew/fix/branch")
	task.git("checkout", "--quiet", "--orphan", "state")
	state := task.commit("session.jsonl", "what the user said")
	task.push("HEAD:" + stateRef("fix", 1))
	blob := task.git("rev-parse", "HEAD:session.jsonl")

	reader := s.client(codeToken)
	want := code + "\trefs/clew/uid-fix/code/1\n" + code + "\t" + head + "\n" + code + "\trefs/heads/clew/fix/branch"
	if got := reader.git("ls-remote", reader.url); got != want {
		t.Errorf("a reader of code sees the refs\n%s\nwant\n%s", got, want)
	}
	reader.git("fetch", "--quiet", reader.url, codeRef("fix", 1), "refs/heads/clew/*:refs/heads/clew/*")
	for _, version := range []string{"0", "2"} {
		for what, object := range map[string]string{"state": state, "ref of the state": stateRef("fix", 1), "session": blob} {
			if _, _, err := s.client(codeToken).try("-c", "protocol.version="+version, "fetch", "--quiet", reader.url, object); err == nil {
				t.Errorf("a reader of code got the %s by version %s", what, version)
			}
		}
		if _, _, err := s.client(codeToken).try("-c", "protocol.version="+version, "fetch", "--quiet", "--depth=1", reader.url, codeRef("fix", 1)); err == nil {
			t.Errorf("a shallow fetch of a reader of code by version %s succeeded", version)
		}
	}
	if s.client(readerToken).git("ls-remote", reader.url, stateRef("fix", 1)) == "" {
		t.Error("a reader who may read conversations does not see the agent's state")
	}
}

// TestATaskThatContinuesAHistoryReadsItsSourceWhileNoCheckpointIsThere: what the former task had taken
// may never have arrived, and without its source the task could not start. A history with checkpoints is
// enough, and nobody has judged whether its source may be read.
func TestATaskThatContinuesAHistoryReadsItsSourceWhileNoCheckpointIsThere(t *testing.T) {
	s := newTestServer(t, Limits{})
	source := s.client(taskToken("fix", 1))
	source.commit("a.go", "code")
	source.push("HEAD:"+codeRef("fix", 1), "HEAD:"+stateRef("fix", 1))
	task := s.client(taskToken("again", 1) + ":former-uid-fix")
	sees := func(want bool, when string) {
		t.Helper()
		if seen := task.git("ls-remote", task.url, codeRef("fix", 1)) != ""; seen != want {
			t.Errorf("%s, it sees its source: %t", when, seen)
		}
	}
	sees(true, "before a checkpoint is there")
	task.git("fetch", "--quiet", task.url, codeRef("fix", 1))
	task.commit("b.go", "more code")
	task.push("HEAD:" + codeRef("again", 2))
	sees(true, "while its state is not there")
	task.push("HEAD:" + stateRef("again", 2))
	sees(false, "with a checkpoint")
}

// A client other than git, which need not keep to the protocol, gets the same answer.
func TestRawRequestsForObjectsAreRefused(t *testing.T) {
	s := twoTasks(t)
	ask := func(token, body string) string {
		t.Helper()
		r, err := http.NewRequest(http.MethodPost, s.url("team", repository)+"/git-upload-pack", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.SetBasicAuth("x", token)
		r.Header.Set("Content-Type", "application/x-git-upload-pack-request")
		r.Header.Set("Git-Protocol", "version=2")
		response, err := s.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		answer, err := io.ReadAll(response.Body)
		if err != nil { // git has died, and the connection was aborted
			return string(answer) + "not our ref: " + err.Error()
		}
		return string(answer)
	}
	old := func(id string) string {
		return string(packet([]byte("want "+id+" side-band-64k no-progress thin-pack\n"))) + "0000" + string(packet([]byte("done\n")))
	}
	new := func(id string) string {
		return string(packet([]byte("command=fetch\n"))) + "0001" + string(packet([]byte("want "+id+"\n"))) + string(packet([]byte("done\n"))) + "0000"
	}
	for _, token := range []string{taskToken("own", 1), taskToken("new", 1), readerToken} {
		for what, id := range map[string]string{"commit": s.commit, "tree": s.tree, "file": s.file} {
			if token == readerToken && what == "commit" {
				continue
			}
			if answer := ask(token, old(id)); strings.Contains(answer, "PACK") || !strings.Contains(answer, "not our ref") {
				t.Errorf("%s asked for a %s and got %.200q", token, what, answer)
			}
			if answer := ask(token, new(id)); strings.Contains(answer, "PACK") || !strings.Contains(answer, "clew: BadRequest: ") {
				t.Errorf("%s asked for a %s by version 2 and got %.200q", token, what, answer)
			}
		}
	}
	if answer := ask(taskToken("other", 1), old(s.commit)); !strings.Contains(answer, "PACK") {
		t.Errorf("a task that asked for its own commit got %.200q", answer)
	}
}

// Git sends the parents of any commit that a client calls shallow: nobody must get commits
// in this way that they cannot see otherwise.
func TestShallowRequestDoesNotExposeParents(t *testing.T) {
	s := twoTasks(t)
	other := s.client(taskToken("other", 1))
	parent := other.commitAs(checkpointCommitter, "second", "words")
	gone := other.commitAs(checkpointCommitter, "third", "more words")
	other.push("HEAD:refs/heads/clew/other/later")
	tip := s.own.git("rev-parse", "HEAD")
	ask := func(token, want string, lines ...string) string {
		body := packet([]byte("want " + want + " ofs-delta no-progress\n"))
		for _, line := range lines {
			body = append(body, packet([]byte(line))...)
		}
		_, answer := s.post(token, "git-upload-pack", string(body)+"0000"+string(packet([]byte("have "+want+"\n")))+string(packet([]byte("done\n"))))
		return answer
	}
	for _, lines := range [][]string{
		{"shallow " + gone + "\n", "deepen 2147483647\n"},
		{"deepen 2147483647\n"},
		{"deepen-not refs/heads/clew/other/later\n"},
	} {
		if answer := ask(taskToken("own", 1), tip, lines...); strings.Contains(answer, "PACK") || !strings.Contains(answer, "clew: BadRequest: ") {
			t.Errorf("a task sent %q and got %.200q", lines, answer)
		}
	}
	// A reader may make shallow clones of what refs reach, but of nothing else.
	shallow := []string{"shallow " + gone + "\n", "deepen 2147483647\n"}
	if answer := ask(readerToken, gone, shallow...); !strings.Contains(answer, "PACK") {
		t.Errorf("a reader that deepens gets %.200q", answer)
	}
	reader := s.client(readerToken)
	reader.git("fetch", "--quiet", "--depth=1", reader.url, "refs/heads/clew/other/later")
	reader.git("fetch", "--quiet", "--unshallow", reader.url, "refs/heads/clew/other/later")
	reader.git("cat-file", "-e", parent)
	reader.git("--git-dir="+s.bare(repository), "update-ref", "-d", "refs/heads/clew/other/later")
	if answer := ask(readerToken, tip, shallow...); strings.Contains(answer, "PACK") || !strings.Contains(answer, "not our ref") {
		t.Errorf("a reader called a commit shallow that no ref reaches, and got %.200q", answer)
	}
}

// However a client asks for one, a task never gets a thin pack, whose deltas build on
// objects outside the pack.
func TestATaskGetsNoThinPack(t *testing.T) {
	s := twoTasks(t)
	const id = "1234567890123456789012345678901234567890"
	asks := func(lines ...string) string {
		var body []byte
		for _, line := range lines {
			body = append(body, packet([]byte("want "+id+line+"\n"))...)
		}
		return string(body) + "0000"
	}
	body := asks(" ofs-delta thin-pack agent=git/2 filter thin-pack  thin-pack=1", " thin-pack")
	if _, _, raw, err := readWants(strings.NewReader(body), true); err != nil || string(raw) != asks(" ofs-delta agent=git/2", "") {
		t.Errorf("git is sent %q, %v", raw, err)
	}
	if _, _, _, err := readWants(strings.NewReader(asks(" ofs-delta\tthin-pack")), true); err == nil {
		t.Error("a capability after a tab, which git treats as a space, is passed on")
	}
	s.own.git("fetch", "--quiet", s.own.url, codeRef("own", 1))
}

func TestATaskSeesItsOwnRefsAndThoseOfItsSource(t *testing.T) {
	s := twoTasks(t)
	refs := func(token string) string {
		c := s.client(token)
		return c.git("ls-remote", "--refs", c.url)
	}
	own, fork, reader := refs(taskToken("own", 1)), refs(forkToken("fork", "other")), refs(readerToken)
	if strings.Contains(own, "other") || !strings.Contains(own, codeRef("own", 1)) {
		t.Errorf("a task sees\n%s", own)
	}
	if !strings.Contains(fork, codeRef("other", 1)) || strings.Contains(fork, "uid-own") {
		t.Errorf("a fork sees\n%s", fork)
	}
	if !strings.Contains(reader, codeRef("own", 1)) || !strings.Contains(reader, "refs/heads/clew/other/branch") {
		t.Errorf("a reader sees\n%s", reader)
	}
	clone := s.client(readerToken)
	clone.git("clone", "--quiet", "--mirror", clone.url, "whole")
	if got := clone.git("-C", "whole", "show", codeRef("other", 1)+":secret"); got != "the other task's words" {
		t.Errorf("the secret in a reader's clone is %q", got)
	}
}

func TestAForkBuildsOnItsSource(t *testing.T) {
	s := twoTasks(t)
	fork := s.client(forkToken("fork", "other"))
	fork.git("fetch", "--quiet", fork.url, codeRef("other", 1))
	fork.git("checkout", "--quiet", "FETCH_HEAD")
	before, err := diskUse(s.bare(repository))
	if err != nil {
		t.Fatal(err)
	}
	fork.commit("b", "a step further")
	fork.push("HEAD:"+codeRef("fork", 1), "HEAD:"+stateRef("fork", 1))
	fork.commit("b", "another step")
	fork.push("HEAD:" + codeRef("fork", 2))
	if after, err := diskUse(s.bare(repository)); err != nil || after-before > 200<<10 {
		t.Errorf("the fork added %d bytes (%v), want 200 KiB at most", after-before, err)
	}
}

// Nor does a push give access to another task's objects by their hashes: neither by a ref
// to an existing object, nor by a tree that names one, nor by a delta against one.
func TestAPushCannotTakeAnothersObjectsForItsOwn(t *testing.T) {
	s := twoTasks(t)
	id := func(text string) []byte {
		b, err := hex.DecodeString(text)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	commitOf := func(tree []byte) ([]byte, []byte) {
		commit := fmt.Appendf(nil, "tree %x\nauthor a <a@b> 1 +0000\ncommitter a <a@b> 1 +0000\n\nm\n", tree)
		return gitbomb.Object(gitbomb.KindCommit, len(commit), nil, bytes.NewReader(commit)), gitbomb.ObjectID("commit", len(commit), bytes.NewReader(commit))
	}
	ref, token := codeRef("own", 7), taskToken("own", 1)
	// Daemons of all versions recognise a push that lacks objects by these very words.
	const lacking, thin = "objects that it does not bring", "the pack contains deltas against objects that are not in it"
	refuse := func(what, says, output string) {
		t.Helper()
		refused := checkRefused(t, what, output, gitstoreapi.ObjectsRefused)
		if refused != nil && !strings.Contains(refused.Message, says) {
			t.Errorf("%s: refused with %q, want the words %q", what, refused.Message, says)
		}
		if id := s.remoteRef(ref); id != "" {
			t.Errorf("%s: the ref was created and points to %s", what, id)
		}
	}
	refuse("a ref to a commit", lacking, s.pushPack(token, ref, gitbomb.Pack(), id(s.commit)))
	commit, tip := commitOf(id(s.tree))
	refuse("a commit of a tree", lacking, s.pushPack(token, ref, gitbomb.Pack(commit), tip))

	entry := append([]byte("100644 taken\x00"), id(s.file)...)
	tree := gitbomb.ObjectID("tree", len(entry), bytes.NewReader(entry))
	commit, tip = commitOf(tree)
	packedEntry := gitbomb.Object(gitbomb.KindTree, len(entry), nil, bytes.NewReader(entry))
	refuse("a tree with a file", lacking, s.pushPack(token, ref, gitbomb.Pack(commit, packedEntry), tip))

	// A delta that copies one byte of the file: git completes the pack with it.
	delta := []byte{byte(len("the other task's words")), 1, 0x90, 1}
	refuse("a delta against a file", thin, s.pushPack(token, ref, gitbomb.Pack(commit, packedEntry, gitbomb.Object(gitbomb.KindDelta, len(delta), id(s.file), bytes.NewReader(delta))), tip))
	fsck(t, s.bare(repository))
}

func TestTasksOfOneOriginShareItsHistory(t *testing.T) {
	s := twoTasks(t)
	third := s.client(taskToken("third", 1))
	third.commit("README", "words of the origin")
	if got := third.git("rev-parse", "HEAD"); got != s.origin {
		t.Fatalf("the origin's commit is %s, want %s", got, s.origin)
	}
	third.commit("c", "work")
	third.env = append(third.env, "GIT_TRACE_PACKET=1")
	_, stderr, err := third.try("push", third.url, "HEAD:"+codeRef("third", 1))
	if err != nil || !strings.Contains(stderr, s.origin+" .have") {
		t.Errorf("the push returned %v; the origin's commit must be advertised as .have:\n%s", err, stderr)
	}
	if strings.Contains(stderr, s.commit) {
		t.Errorf("a task is advertised another's checkpoint:\n%s", stderr)
	}
}
