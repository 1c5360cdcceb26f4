package historyapi_test

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"k8s.io/apiserver/pkg/authentication/user"

	historyv1alpha1 "github.com/clew-dev/clew/api/history/v1alpha1"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/server/entries"
	"github.com/clew-dev/clew/internal/server/historyapi"
)

var _ = Describe("A watch of timelines", func() {
	var (
		f    *fixture
		feed *entries.Feed
		api  *httptest.Server
	)
	BeforeEach(func() {
		f = serve()
		feed = entries.New()
		f.options.Feed, f.options.Registerer = feed, nil
		f.options.Authorizer = rights{"ann watch timelines/ team/": true, "ann list timelines/ team/": true, "bob list timelines/ team/": true}
		f.handler = handlerOf(f.options)
		api = httptest.NewServer(f.handler)
		DeferCleanup(api.Close)
		DeferCleanup(feed.Close) // before that, which waits for watches to end
	})
	// watch begins a watch of ann's, and returns the channel of its lines, which is closed when it ends.
	watch := func(query string) <-chan historyv1alpha1.TimelineEvent {
		GinkgoHelper()
		r, err := http.NewRequestWithContext(f.ctx, http.MethodGet, api.URL+base+"/timelines?watch=true"+query, nil)
		Expect(err).NotTo(HaveOccurred())
		r.Header.Set("X-User", "ann")
		response, err := api.Client().Do(r)
		Expect(err).NotTo(HaveOccurred())
		Expect(response).To(HaveHTTPStatus(http.StatusOK))
		lines := make(chan historyv1alpha1.TimelineEvent, 10)
		go func() {
			defer GinkgoRecover()
			defer close(lines)
			defer response.Body.Close()
			for scanner := bufio.NewScanner(response.Body); scanner.Scan(); {
				var line struct {
					Type   string
					Object historyv1alpha1.TimelineEvent
				}
				Expect(json.Unmarshal(scanner.Bytes(), &line)).To(Succeed())
				Expect(line.Type).To(Equal("ADDED"))
				lines <- line.Object
			}
		}()
		return lines
	}
	// add records an event of a task, and tells of it as the store does.
	add := func(task, id, kind string) {
		GinkgoHelper()
		e := history.Event{ID: id, Task: history.Task{Namespace: "team", Name: task, UID: "uid-of-" + task}, Type: kind, Reason: "R", Time: noon}
		Expect(f.named.RecordEvents(f.ctx, []history.Event{e})).To(Succeed())
		feed.Handle(history.NewEntry{Task: e.Task.Key(), Event: id})
	}
	next := func(lines <-chan historyv1alpha1.TimelineEvent) historyv1alpha1.TimelineEvent {
		GinkgoHelper()
		var e historyv1alpha1.TimelineEvent
		Eventually(lines).WithTimeout(20 * time.Second).Should(Receive(&e))
		return e
	}

	It("has each entry that is added, as the list has it", func() {
		add("a", "before", "task")
		lines := watch("")
		add("a", "1", "task")
		first := next(lines)
		Expect(first.ID).To(Equal("1"))
		add("b", "2", "rewind")
		Expect(next(lines)).To(And(HaveField("ID", "2"), HaveField("Task", "b")))
		Expect(read[historyv1alpha1.TimelineEventList](f, base+"/timelines").Items).To(ContainElement(first))
	})

	It("has those of one task, or of some types, only", func() {
		lines := watch("&task=b&type=rewind,fork")
		for _, e := range [][2]string{{"a", "fork"}, {"b", "task"}, {"b", "rewind"}} {
			add(e[0], e[0]+e[1], e[1])
		}
		Expect(next(lines).ID).To(Equal("brewind"))
	})

	It("ends when entries may have been missed", func() {
		lines := watch("")
		feed.Handle(history.NewEntry{})
		Eventually(lines).WithTimeout(20 * time.Second).Should(BeClosed())
	})

	It("ends when its namespace is made anew, of which it has nothing", func() {
		lines := watch("")
		f.remade.times.Add(1)
		add("a", "of-the-new-one", "task")
		var got []historyv1alpha1.TimelineEvent
		ended := func() bool {
			for {
				select {
				case e, open := <-lines:
					if !open {
						return true
					}
					got = append(got, e)
				default:
					return false
				}
			}
		}
		Eventually(ended).WithTimeout(20 * time.Second).Should(BeTrue())
		Expect(got).To(BeEmpty())
		lines = watch("")
		add("a", "again", "task")
		Expect(next(lines).ID).To(Equal("again"), "of one that begins since")
	})

	It("is refused to whoever has had the right only before the namespace was made anew", func(ctx SpecContext) {
		f.options.Authorizer = former{f.remade}
		f.handler = handlerOf(f.options)
		short, end := context.WithTimeout(ctx, 20*time.Second) // a watch that is not refused goes on
		defer end()
		f.ctx = short
		Expect(f.get("ann", base+"/timelines?watch=true")).To(beRefused(http.StatusForbidden))
	})

	It("is a right of its own", func() {
		Expect(f.get("bob", base+"/timelines")).To(HaveHTTPStatus(http.StatusOK))
		Expect(f.get("bob", base+"/timelines?watch=true")).To(beRefused(http.StatusForbidden))
		Expect(f.get("ann", base+"/timelines?watch=perhaps")).To(beRefused(http.StatusBadRequest))
		Expect(f.get("ann", base+"/timelines?watch=true&type=x")).To(beRefused(http.StatusBadRequest))
	})

	It("has room for so many of a namespace", func(ctx SpecContext) {
		followed := &idle{}
		f.options.Feed = followed
		f.handler = handlerOf(f.options)
		watching, cancel := context.WithCancel(ctx)
		defer cancel()
		f.ctx = watching
		for range 16 {
			go f.send("ann", http.MethodGet, base+"/timelines?watch=true", nil)
		}
		Eventually(followed.count).WithTimeout(20 * time.Second).Should(Equal(16))
		short, end := context.WithTimeout(ctx, 100*time.Millisecond) // instead of the patience of a caller
		defer end()
		f.ctx = short
		Expect(f.send("ann", http.MethodGet, base+"/timelines?watch=true", nil)).To(beRefused(http.StatusTooManyRequests))
	})
})

// former allows everything in the first namespace of a name, which is made anew as soon as it has answered.
type former struct{ namespaces *remade }

func (f former) Authorize(context.Context, user.Info, historyapi.Access) (bool, string, error) {
	return f.namespaces.times.Add(1) == 1, "", nil
}

// idle is a feed without entries that counts who follows.
type idle struct{ following atomic.Int32 }

func (i *idle) count() int { return int(i.following.Load()) }

func (i *idle) Follow(string) (func(context.Context, int) []history.NewEntry, func()) {
	i.following.Add(1)
	return func(ctx context.Context, _ int) []history.NewEntry { <-ctx.Done(); return nil }, func() { i.following.Add(-1) }
}
