package postgres_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/clew-dev/clew/internal/history"
)

// BenchmarkAppend stores one tool call and its result per batch, as a daemon does that
// keeps up.
func BenchmarkAppend(b *testing.B) {
	w := begin(b, open(b), taskNamed("a"), 1)
	for i := range b.N {
		id := fmt.Sprint(i)
		w.append(call(id), result(id))
	}
}

// BenchmarkAppendMany stores a thousand messages of 1 KiB in one batch.
func BenchmarkAppendMany(b *testing.B) {
	w := begin(b, open(b), taskNamed("a"), 1)
	text := strings.Repeat("x", 1024)
	for i := range b.N {
		var records []history.Record
		for n := range 1000 {
			records = append(records, user(fmt.Sprint(i, n, text)))
		}
		w.append(records...)
	}
}

// BenchmarkConversation reads the last 1,000 messages of a conversation of
// 10,000 on five branches.
func BenchmarkConversation(b *testing.B) {
	w := begin(b, open(b), taskNamed("a"), 1)
	for branch := range 5 {
		var records []history.Record
		for n := range 2000 {
			records = append(records, user(fmt.Sprint(branch, n, strings.Repeat("x", 500))))
		}
		w.append(append(records, checkpoint(int64(branch+1)))...)
		w.move(fmt.Sprint(branch), int64(branch+1))
	}
	b.ResetTimer()
	for range b.N {
		entries, err := w.store.Conversation(b.Context(), w.task.UID, 9000, 1000)
		if err != nil || len(entries) != 1000 {
			b.Fatalf("%d entries, %v", len(entries), err)
		}
	}
}

// BenchmarkGrowth measures the space of a conversation of 1,000 messages with a
// checkpoint and a snapshot after each of them, and how long these take.
func BenchmarkGrowth(b *testing.B) {
	g := measureGrowth(b, pg, 1000)
	b.ReportMetric(float64(g.each)/1024, "kB")
	b.ReportMetric(float64(g.one)/1024, "kB-one-snapshot")
	b.ReportMetric(float64(g.raw)/1024, "kB-raw-JSON")
	b.ReportMetric(float64(g.empty)/1024, "kB-empty")
	b.ReportMetric(g.perSnapshot, "x-one-snapshot")
	b.ReportMetric(g.perRaw, "x-raw-JSON")
	b.ReportMetric(g.added, "bytes/snapshot")
	b.ReportMetric(ms(g.append), "append-ms")
	b.ReportMetric(ms(g.appendWithSnapshot), "append-snapshot-ms")
	b.ReportMetric(ms(g.load), "load-ms")
	b.ReportMetric(ms(g.fork), "fork-ms")
	b.ReportMetric(ms(g.verify), "verify-ms")
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// BenchmarkPlans checks the plans of the queries over large tables, with a million
// messages in a hundred namespaces and 100,000 tasks in a list.
func BenchmarkPlans(b *testing.B) {
	conn := connect(b, pg.Database(b))
	fillMuch(b, conn, much{namespaces: 100, tasks: 50, listed: 100_000, events: 100_000, checkpoints: 300})
	for _, p := range plans(b) {
		b.Run(strings.ReplaceAll(p.name, " ", "_"), func(b *testing.B) {
			var times []float64
			var last plan
			for range 7 {
				last = explain(b, conn, p.text, p.args)
				times = append(times, last.milliseconds)
			}
			slices.Sort(times)
			b.ReportMetric(times[len(times)/2], "plan-ms")
			b.ReportMetric(float64(last.rows), "rows")
			b.ReportMetric(float64(last.blocks), "blocks")
			for line := range strings.SplitSeq(last.text, "\n") {
				fmt.Printf("\nPLAN %s: %s", p.name, line)
			}
			fmt.Println()
		})
	}
}
