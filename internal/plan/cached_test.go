package plan

import (
	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/controller/cached"
)

// sameFromCache fails unless a decision from what the manager's cache keeps of the Task acts if a plan does,
// and is made again at the same time if it does not: the controller decides from that first.
func (s *scene) sameFromCache(p Plan) {
	s.Helper()
	for kind, options := range cached.Options().ByObject {
		if _, ok := kind.(*v1alpha1.Task); !ok {
			continue
		}
		kept, err := options.Transform(s.o.Task.DeepCopy())
		if err != nil {
			s.Fatal(err)
		}
		o := s.o
		o.Task = kept.(*v1alpha1.Task)
		if got := Decide(o, s.now); got.Acts() != p.Acts() || !p.Acts() && got.RequeueAfter != p.RequeueAfter {
			s.Errorf("from the cache, the plan acts: %t, and is made again after %s; want %t and %s", got.Acts(), got.RequeueAfter, p.Acts(), p.RequeueAfter)
		}
	}
}
