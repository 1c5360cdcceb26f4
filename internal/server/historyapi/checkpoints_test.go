package historyapi_test

import (
	"net/http"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	historyv1alpha1 "github.com/clew-dev/clew/api/history/v1alpha1"
	"github.com/clew-dev/clew/internal/conversation"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/server/historyapi"
)

const checkpointsPath = base + "/tasks/a/checkpoints"

var _ = Describe("The recorded checkpoints of a task", func() {
	It("are listed newest first, by pages", func() {
		f := quiet()
		first := decoded[historyv1alpha1.CheckpointList](f.get("ann", checkpointsPath+"?limit=1"))
		Expect(first.Items).To(HaveExactElements(HaveField("Number", int64(2))))
		Expect(first.Continue).NotTo(BeEmpty())
		second := decoded[historyv1alpha1.CheckpointList](f.get("ann", checkpointsPath+"?limit=1&continue="+first.Continue))
		Expect(second.Items).To(HaveExactElements(HaveField("Number", int64(1))))
		Expect(second.Continue).To(BeEmpty())
	})

	It("are read from the store with everything that was recorded", func() {
		f := serveWith(pg.Database(GinkgoTB()), func(f *fixture) historyapi.Archive { return f.store })
		task, at := history.Task{Namespace: "team", Name: "a", UID: "u"}, time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)
		Expect(f.store.Begin(f.ctx, task, 1, nil, history.BeginOptions{})).Error().NotTo(HaveOccurred())
		Expect(f.store.Append(f.ctx, task, 1, []history.Record{
			{Sequence: 1, Time: at, Attempt: 1, Message: &conversation.Message{Role: conversation.RoleUser, Text: "do it"}},
			{Sequence: 2, Time: at, Attempt: 1, Checkpoint: &history.Checkpoint{
				Number: 1, Trigger: "Manual", Consistency: "PointInTime", Time: at, Message: "m", Commit: "c", Tree: "t", Parent: "p", Base: "b", StateCommit: "s",
				FilesChanged: 1, LinesAdded: 2, LinesRemoved: 3, GitHead: "h", GitBranch: "main", DirtyFileCount: 4, DirtyFiles: []string{"d"},
				Files: 5, Bytes: 6, SkippedCount: 7, Skipped: []history.SkippedFile{{Path: "f", Reason: "Fifo", Bytes: 8}}, Durable: true, RequestedByName: "mine",
				Changes: []history.FileChange{{Path: "x", Action: "Added"}},
			}},
		})).Error().NotTo(HaveOccurred())

		got := decoded[historyv1alpha1.Checkpoint](f.get("ann", checkpointsPath+"/1"))
		Expect(got.Digest).NotTo(BeEmpty())
		got.Digest = ""
		want := historyv1alpha1.Checkpoint{
			TypeMeta: metav1.TypeMeta{APIVersion: "history.clew.dev/v1alpha1", Kind: "Checkpoint"},
			TaskUID:  "u", Number: 1, Attempt: 1, Trigger: "Manual", Consistency: "PointInTime", Time: metav1.NewMicroTime(at.Local()), Message: "m",
			Commit: "c", Tree: "t", Parent: "p", Base: "b", StateCommit: "s", Durable: true, RequestedByName: "mine",
			FilesChanged: 1, LinesAdded: 2, LinesRemoved: 3, Files: 5, Bytes: 6, SkippedCount: 7,
			GitHead: "h", GitBranch: "main", DirtyFileCount: 4, DirtyFiles: []string{"d"}, Branch: "main", Position: 1,
			ChangedFiles: []historyv1alpha1.ChangedFile{{Path: "x", Action: "Added"}},
			Skipped:      []historyv1alpha1.SkippedFile{{Path: "f", Reason: "Fifo", Bytes: 8}},
		}
		Expect(got).To(Equal(want))

		listed := decoded[historyv1alpha1.CheckpointList](f.get("ann", checkpointsPath)).Items
		want.TypeMeta, want.ChangedFiles, want.Skipped, want.DirtyFiles = metav1.TypeMeta{}, nil, nil, nil
		Expect(listed).To(HaveLen(1))
		listed[0].Digest = ""
		Expect(listed[0]).To(Equal(want), "in a list, without the lists of files")
	})

	DescribeTable("are refused with a sentence", func(who, path string, code int, sentence string) {
		w := quiet().get(who, checkpointsPath+path)
		Expect(w).To(HaveHTTPStatus(code))
		Expect(decoded[metav1.Status](w).Message).To(ContainSubstring(sentence))
	},
		Entry("to a stranger", "eve", "", http.StatusForbidden, "may not get tasks/checkpoints"),
		Entry("one by one, to a stranger", "eve", "/1", http.StatusForbidden, "may not get tasks/checkpoints"),
		Entry("if there is none of the number", "ann", "/9", http.StatusNotFound, "task a has no checkpoint 9: its newest is "),
		Entry("if it is not a number", "ann", "/latest", http.StatusBadRequest, `"latest" is not the number of a checkpoint`),
		Entry("after the token of another list", "ann", "?continue=e30", http.StatusBadRequest, "not from this list"),
		Entry("of another task", "ann", "/1?uid=none", http.StatusNotFound, "no such history"),
	)
})
