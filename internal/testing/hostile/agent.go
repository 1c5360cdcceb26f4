package main

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"
)

const (
	// keptFiles and keptRefs are how many exist at once.
	keptFiles, keptRefs = 20_000, 20_000
	// patternBytes is the size of the patterns in each of patternFolders nested folders.
	patternBytes, patternFolders = 1 << 20, 8
	// sparseBytes is the size of the file without content, and noiseBytes that of the noise.
	sparseBytes = 400 << 20
	noiseBytes  = 32 << 20
	// hugeLine is the size of the longest lines.
	hugeLine = 16 << 20
)

// agentFloods returns the floods of the agent, in its worktree.
func agentFloods() map[string]flood {
	out := bufio.NewWriterSize(os.Stdout, 64<<10)
	return map[string]flood{
		"lines":    {workers: 1, once: func(_ context.Context, _, i int) error { return lines(out, i) }},
		"files":    {workers: 2, once: func(_ context.Context, worker, i int) error { return file(worker, i) }},
		"patterns": {workers: 1, pause: time.Second, once: func(_ context.Context, _, i int) error { return patterns(i) }},
		"refs":     {workers: 1, once: func(_ context.Context, _, i int) error { return ref(i) }},
		"packed":   {workers: 1, pause: 5 * time.Second, once: func(context.Context, int, int) error { return packedRefs() }},
		"deltas":   {workers: 1, pause: 20 * time.Second, once: func(_ context.Context, _, i int) error { return deltas(i) }},
		"socket":   {workers: 20, pause: 10 * time.Millisecond, once: knock},
	}
}

// lines prints everything that an agent can print, and much that none does.
func lines(out *bufio.Writer, i int) error {
	switch {
	case i%20_000 == 19_999:
		fmt.Fprintf(out, `{"type":"message","role":"assistant","text":"%s"}`+"\n", strings.Repeat("a line without an end ", hugeLine/22))
	case i%10_000 == 9_999:
		fmt.Fprintln(out, strings.Repeat("\x1b[31m\x00\xff", hugeLine/7))
	case i%4 == 0:
		fmt.Fprintf(out, `{"type":"tool_call","id":"call-%d","name":"shell","input":{"command":"rm -rf %d"}}`+"\n", i, i)
	case i%4 == 1:
		fmt.Fprintf(out, `{"type":"tool_result","id":"call-%d","output":"%x"}`+"\n", i-1, rand.Uint64())
	case i%4 == 2:
		fmt.Fprintf(out, `{"type":"message","role":"assistant","text":"%x %x %x"}`+"\n", rand.Uint64(), rand.Uint64(), rand.Uint64())
	default:
		fmt.Fprintf(out, "noise %d %x\n", i, rand.Uint64())
	}
	return out.Flush()
}

// file writes another file, in place of an older one.
func file(worker, i int) error {
	folder := fmt.Sprintf("flood/%d/%d", worker, i%keptFiles/100)
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	return os.WriteFile(fmt.Sprintf("%s/%d", folder, i%100), fmt.Appendf(nil, "%d %x", i, rand.Uint64()), 0o644)
}

// patterns writes ignore patterns that are expensive to match into every folder on the way to a
// deep one.
func patterns(i int) error {
	folder := "patterns"
	text := []byte(strings.Repeat([]string{"?\n", "a*b*c*d*e*?\n", "**/[!a-z]*/x\n"}[i%3], patternBytes/12))
	for range patternFolders {
		if err := os.MkdirAll(folder, 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(folder, ".gitignore"), text, 0o644); err != nil {
			return err
		}
		folder = filepath.Join(folder, "deeper")
	}
	return os.WriteFile(filepath.Join(filepath.Dir(folder), "file"), fmt.Append(nil, i), 0o644)
}

// someCommit is the target of the branches.
const someCommit = "292047a0a953585cd0091e286f5da7bea0615754"

// ref creates another branch, in place of an older one.
func ref(i int) error {
	folder := fmt.Sprintf(".git/refs/heads/flood-%d", i%keptRefs/100)
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	return os.WriteFile(fmt.Sprintf("%s/%d", folder, i%100), []byte(someCommit+"\n"), 0o644)
}

// packedRefs writes a file of many packed refs.
func packedRefs() error {
	var text strings.Builder
	text.WriteString("# pack-refs with: peeled fully-peeled sorted \n")
	for i := range 200_000 {
		fmt.Fprintf(&text, "%s refs/heads/packed/%06d\n", someCommit, i)
	}
	return os.WriteFile(".git/packed-refs", []byte(text.String()), 0o644)
}

// deltas changes a large file without content, which git stores as a delta, and a smaller one of
// noise, which it stores whole.
func deltas(i int) error {
	sparse, err := os.OpenFile(".git/sparse", os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer sparse.Close()
	if err := sparse.Truncate(sparseBytes + int64(i)); err != nil {
		return err
	}
	noise, err := os.Create("noise")
	if err != nil {
		return err
	}
	defer noise.Close()
	var key [32]byte
	copy(key[:], fmt.Sprint(i))
	random, block := rand.NewChaCha8(key), make([]byte, 1<<20)
	for range noiseBytes / len(block) {
		_, _ = random.Read(block) // never fails
		if _, err := noise.Write(block); err != nil {
			return err
		}
	}
	return nil
}

// knock sends nonsense to the daemon's socket.
func knock(ctx context.Context, _, i int) error {
	c, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "unix", "/run/clew/daemon.sock")
	if err != nil {
		return err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(5 * time.Second)) // a connection of this kind has deadlines
	message := []string{"\xff\xff\xff\xff", "{\"session\":\"x\"}\n", "\x00\x00\x00\x01\x01", strings.Repeat("A", 64<<10)}[i%4]
	if _, err := c.Write([]byte(message)); err != nil {
		return err
	}
	_, err = c.Read(make([]byte, 1024))
	return err
}
