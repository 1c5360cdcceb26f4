package gitstore

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/clew-dev/clew/internal/gitstoreapi"
)

const (
	// benchFiles is the size of an ordinary project, and benchChanged a large change to it.
	benchFiles, benchChanged = 10_000, 500
	// benchApart is the number of checkpoints between two points far apart.
	benchApart = 900
)

// benchClient asks for differences over TLS, as Clew's server does.
func benchClient(b *testing.B, server *testServer) gitstoreapi.Client {
	b.Helper()
	token := filepath.Join(b.TempDir(), "token")
	if err := os.WriteFile(token, []byte(serverToken), 0o600); err != nil {
		b.Fatal(err)
	}
	return gitstoreapi.Client{BaseURL: server.URL, CAFile: server.ca, TokenFile: token}
}

// changeBench commits changes to the first 500 files, as a checkpoint.
func changeBench(c *client, round int) {
	var files []string
	for i := range benchChanged {
		files = append(files, fmt.Sprintf("src/%02d/%05d.go", i%100, i), fmt.Sprintf("package p\n\n// Round %d.\nconst n = %d\n", round, i))
	}
	c.commit(files...)
}

// BenchmarkDiff measures the difference of 500 changed files in 10,000, with all patches:
// between neighbours, and between two checkpoints 900 apart with as many changed files.
// diff-tree is the time of git itself for the patch, in the same repository.
func BenchmarkDiff(b *testing.B) {
	server := newTestServer(b, Limits{})
	fix := server.client(taskToken("fix", 1)).checkpoints()
	var files []string
	for i := range benchFiles {
		files = append(files, fmt.Sprintf("src/%02d/%05d.go", i%100, i), fmt.Sprintf("package p\n\nconst n = %d\n", i))
	}
	fix.commit(files...)
	fix.push("HEAD:" + codeRef("fix", 1))
	for n := 2; n < benchApart; n++ {
		fix.commit("progress", fmt.Sprintf("step %d\n", n))
		if n%10 == 0 {
			fix.push("HEAD:" + codeRef("fix", n))
		}
	}
	changeBench(fix, 1)
	fix.push("HEAD:" + codeRef("fix", benchApart))
	changeBench(fix, 2)
	fix.push("HEAD:" + codeRef("fix", benchApart+1))
	client := benchClient(b, server)
	measure := func(b *testing.B, from, to int) {
		for b.Loop() {
			d, err := client.Diff(b.Context(), "team", "uid-fix", gitstoreapi.DiffQuery{
				From: fmt.Sprintf("checkpoint/%d", from), To: fmt.Sprintf("checkpoint/%d", to), Format: gitstoreapi.DiffPatch, Limit: 1000,
			})
			if err != nil || len(d.Files) < benchChanged {
				b.Fatal(err, len(d.Files))
			}
		}
	}
	b.Run("neighbours", func(b *testing.B) { measure(b, benchApart, benchApart+1) })
	b.Run("apart", func(b *testing.B) { measure(b, 1, benchApart+1) })
	b.Run("diff-tree", func(b *testing.B) {
		g, path := server.store.git, server.bare(repository)
		from, to := server.remoteRef(codeRef("fix", benchApart)), server.remoteRef(codeRef("fix", benchApart+1))
		for b.Loop() {
			if _, err := g.run(b.Context(), path, "--git-dir=.", "diff-tree", "-r", "-p", "-M", from, to); err != nil {
				b.Fatal(err)
			}
		}
	})
}
