package gitstore

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

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
// between neighbours, and between two checkpoints 900 apart with as many changed files. The
// floor is git diff-tree for the same patch, which finds out nothing else.
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
	for _, c := range []struct {
		name string
		from int
	}{{"neighbours", benchApart}, {"900_checkpoints_apart", 1}} {
		b.Run(c.name, func(b *testing.B) {
			var own, floor []time.Duration
			plain := server.store.git
			plain.effort = nil // it would count as another namespace, for which the measured one has to wait
			for b.Loop() {
				b.StopTimer()
				begin := time.Now()
				_, err := plain.run(b.Context(), server.bare(repository), "--git-dir=.", "diff-tree", "-r", "-p", "-M",
					server.remoteRef(codeRef("fix", c.from)), server.remoteRef(codeRef("fix", benchApart+1)))
				if err != nil {
					b.Fatal(err)
				}
				floor = append(floor, time.Since(begin))
				b.StartTimer()
				begin = time.Now()
				d, err := client.Diff(b.Context(), "team", "uid-fix", gitstoreapi.DiffQuery{
					From: fmt.Sprintf("checkpoint/%d", c.from), To: fmt.Sprintf("checkpoint/%d", benchApart+1), Format: gitstoreapi.DiffPatch, Limit: 1000,
				})
				if err != nil || len(d.Files) < benchChanged {
					b.Fatal(err, len(d.Files))
				}
				own = append(own, time.Since(begin))
			}
			slices.Sort(own)
			slices.Sort(floor)
			p50, least := own[len(own)/2], floor[len(floor)/2]
			b.ReportMetric(float64(p50.Microseconds())/1000, "p50-ms")
			b.ReportMetric(float64(own[len(own)*95/100].Microseconds())/1000, "p95-ms")
			b.ReportMetric(float64(least.Microseconds())/1000, "diff-tree-ms")
			b.ReportMetric(float64(p50)/float64(least), "x-diff-tree")
		})
	}
}
