package gitstore

import (
	"syscall"
	"testing"
	"time"

	"github.com/onsi/gomega"
)

func TestGitIsNicerForWhomItWorkedMore(t *testing.T) {
	type use struct {
		namespace string
		ago, took time.Duration
	}
	for name, c := range map[string]struct {
		used []use
		want map[string]int
	}{
		"nobody has used anything": {want: map[string]int{"a": 0}},
		"one alone":                {used: []use{{"a", 0, time.Second}}, want: map[string]int{"a": 19, "b": 0}},
		"both the same":            {used: []use{{"a", 0, time.Second}, {"b", 0, time.Second}}, want: map[string]int{"a": 10, "b": 10}},
		"one nine times the other": {used: []use{{"a", 0, 9 * time.Second}, {"b", 0, time.Second}}, want: map[string]int{"a": 17, "b": 2}},
		"what is long ago counts less": {
			used: []use{{"a", 3 * effortHalfLife, 8 * time.Second}, {"b", 0, time.Second}}, want: map[string]int{"a": 10, "b": 10},
		},
		"little by little": {
			used: []use{{"a", effortHalfLife, 2 * time.Second}, {"a", 0, 2 * time.Second}, {"b", 0, time.Second}}, want: map[string]int{"a": 14, "b": 5},
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := gomega.NewWithT(t)
			now := time.Unix(1e9, 0)
			clock := now
			e := newEffort(func() time.Time { return clock })
			for _, u := range c.used {
				clock = now.Add(-u.ago)
				e.note(u.namespace, u.took)
			}
			clock = now
			for namespace, nice := range c.want {
				g.Expect(e.nice(namespace)).To(gomega.Equal(nice), namespace)
			}
		})
	}
}

func TestWhoUsedNothingForLongIsForgotten(t *testing.T) {
	g := gomega.NewWithT(t)
	now := time.Unix(1e9, 0)
	e := newEffort(func() time.Time { return now })
	e.note("a", time.Second)
	now = now.Add(20 * effortHalfLife)
	e.note("b", time.Second)
	g.Expect(e.used).To(gomega.HaveLen(1))
}

func TestGitGivesWayForANamespaceThatUsedMuch(t *testing.T) {
	g := gomega.NewWithT(t)
	server := newTestServer(t, Limits{})
	task := server.client(taskToken("fix", 1))
	task.commit("a", "x")
	task.push("HEAD:" + codeRef("fix", 1))
	e := server.store.git.effort
	g.Expect(e.nice("team")).To(gomega.BeNumerically(">", 0), "what the push took counts")
	e.note("team", time.Hour)

	working := server.store.gitFor(server.store.repository("team", repository))
	command := working.command(t.Context(), server.bare(repository), "--git-dir=.", "cat-file", "--batch")
	stdin, err := command.StdinPipe()
	g.Expect(err).NotTo(gomega.HaveOccurred())
	g.Expect(working.start(command)).To(gomega.Succeed())
	priority, err := syscall.Getpriority(syscall.PRIO_PROCESS, command.Process.Pid)
	g.Expect(err).NotTo(gomega.HaveOccurred())
	g.Expect(20-priority).To(gomega.Equal(19), "the system call counts down from 20")
	g.Expect(stdin.Close()).To(gomega.Succeed())
	g.Expect(working.wait(command)).To(gomega.Succeed())
}
