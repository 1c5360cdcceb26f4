package historyapi_test

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	historyv1alpha1 "github.com/clew-dev/clew/api/history/v1alpha1"
	"github.com/clew-dev/clew/internal/fairshare"
	"github.com/clew-dev/clew/internal/gitstoreapi"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/server/verification"
)

// verifier stands in for what verifies checkpoints on demand.
type verifier struct {
	asked []string
	// found records what the verification finds; err is what it returns.
	found func()
	err   error
}

func (v *verifier) Verify(_ context.Context, task history.Task, number int64, since time.Time) error {
	v.asked = append(v.asked, fmt.Sprintf("%s/%d since %s", task.UID, number, since.Format(time.TimeOnly)))
	if v.found != nil {
		v.found()
	}
	return v.err
}

var _ = Describe("The verification of a checkpoint on demand", func() {
	const path = checkpointsPath + "/2/verification"

	It("says that it is intact, and when that was verified", func() {
		f := quiet()
		f.found.found = func() { f.archive.integrity = map[int64]history.Integrity{2: {Verified: noon.Add(time.Second)}} }
		verified := metav1.NewMicroTime(noon.Add(time.Second).Local())
		Expect(read[historyv1alpha1.CheckpointVerification](f, path)).To(Equal(historyv1alpha1.CheckpointVerification{
			TypeMeta: metav1.TypeMeta{APIVersion: "history.clew.dev/v1alpha1", Kind: "CheckpointVerification"}, Task: "a", TaskUID: "new", Number: 2,
			State: historyv1alpha1.VerificationIntact, Since: metav1.NewMicroTime(noon.Local()), Time: &verified,
		}))
		Expect(f.found.asked).To(Equal([]string{"new/2 since 12:00:00"}))
	})

	It("names the damage, where it may be healed from, and the nearest earlier one that is intact", func() {
		f := quiet()
		f.found.found = func() {
			f.archive.integrity = map[int64]history.Integrity{2: {Verified: noon, Damage: "in the gitstore, a.txt is missing", IntactBefore: 1}}
		}
		Expect(read[historyv1alpha1.CheckpointVerification](f, path)).To(And(
			HaveField("State", historyv1alpha1.VerificationDamaged), HaveField("Damage", "in the gitstore, a.txt is missing"),
			HaveField("IntactBefore", int64(1)), HaveField("Healing", ContainSubstring("volume of task a"))))
	})

	It("goes on after a request has waited long enough, and the next one gets the same outcome", func() {
		f := quiet()
		f.found.err = verification.ErrInProgress
		first := read[historyv1alpha1.CheckpointVerification](f, path)
		Expect(first.State).To(Equal(historyv1alpha1.VerificationInProgress))
		f.archive.integrity = map[int64]history.Integrity{2: {Verified: noon}}
		since := first.Since.UTC().Format(time.RFC3339Nano)
		Expect(read[historyv1alpha1.CheckpointVerification](f, path+"?since="+url.QueryEscape(since))).To(
			HaveField("State", historyv1alpha1.VerificationIntact))
		Expect(f.found.asked).To(HaveLen(1), "the second request needs no other verification")
	})

	DescribeTable("is refused with a sentence", func(who, path string, change func(*fixture), code int, sentence string) {
		f := quiet()
		change(f)
		Expect(f.get(who, path)).To(beRefused(code, saying(sentence)))
	},
		Entry("to a stranger", "eve", path, func(*fixture) {}, http.StatusForbidden, "may not get tasks/checkpoints"),
		Entry("if there is no such checkpoint", "ann", checkpointsPath+"/9/verification", func(*fixture) {}, http.StatusNotFound, "task a has no checkpoint 9"),
		Entry("if the gitstore does not have it yet", "ann", path, func(f *fixture) { f.archive.pending = true }, http.StatusServiceUnavailable, "is being pushed to the gitstore"),
		Entry("about long ago", "ann", path+"?since=2020-01-01T00:00:00Z", func(*fixture) {}, http.StatusBadRequest, "more than an hour ago"),
		Entry("while the gitstore is down", "ann", path, func(f *fixture) { f.found.err = fmt.Errorf("%w: refused", gitstoreapi.ErrUnreachable) },
			http.StatusServiceUnavailable, "the gitstore cannot be reached"),
		Entry("while too many are verified", "ann", path, func(f *fixture) { f.found.err = fairshare.ErrBusy }, http.StatusTooManyRequests, "too many requests"),
	)
})
