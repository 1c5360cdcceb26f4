package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/postgres"
)

var _ = Describe("Maintaining histories of tasks that are gone", func() {
	var (
		dsn     string
		store   *postgres.Store
		options postgres.MaintenanceOptions
		live    []string // the UIDs of the Tasks that exist
		coded   []string // of which tasks the code was deleted
		back    string   // the UID of a former Task that exists again
		// continued is the UID of the task whose history the Task of each name says it continues.
		continued string
	)
	gone, next := taskNamed("gone"), history.Task{Namespace: "team", Name: "gone", UID: "uid-of-next"}
	kept := func(ctx context.Context) (names []string) {
		GinkgoHelper()
		page, err := store.Tasks(ctx, history.TaskQuery{Namespace: "team", Limit: 9, Sort: history.SortName})
		Expect(err).NotTo(HaveOccurred())
		for _, task := range page.Tasks {
			names = append(names, task.Name)
		}
		return names
	}
	later := func(ctx context.Context, days int, column string) {
		GinkgoHelper()
		Expect(connect(GinkgoTB(), dsn).Exec(ctx, fmt.Sprintf("UPDATE tasks SET %[1]s = %[1]s - interval '%[2]d days' WHERE name <> 'young'", column, days))).Error().NotTo(HaveOccurred())
	}
	BeforeEach(func(ctx SpecContext) {
		dsn = pg.Database(GinkgoTB())
		store = openAt(GinkgoTB(), dsn)
		live, coded, back, continued = []string{"uid-of-there"}, nil, "", ""
		options = postgres.MaintenanceOptions{
			MessageRetention: 10 * 24 * time.Hour,
			LiveTasks:        func(context.Context) ([]string, error) { return live, nil },
			TaskExists: func(_ context.Context, task history.Task, formers []string) (bool, string, error) {
				if task.Name == "unclear" {
					return false, "", errors.New("nobody knows")
				}
				return task.Name == "there" || slices.Contains(formers, back), continued, nil
			},
			Awaited: func(context.Context, history.Task) (bool, error) { return false, nil },
			DeleteCode: func(_ context.Context, task history.Task, formers []string) error {
				coded = append(append(coded, task.UID), formers...)
				return nil
			},
		}
		for _, name := range []string{"unclear", "gone", "there", "young"} {
			begin(GinkgoTB(), store, taskNamed(name), 1).append(user(name))
		}
		later(ctx, 100, "updated_at")
	})

	It("histories are deleted when they have been for the retention", func(ctx SpecContext) {
		clean(GinkgoTB(), store, options)
		later(ctx, 9, "gone_since")
		clean(GinkgoTB(), store, options)
		Expect(kept(ctx)).To(HaveLen(4), "a cluster that was lost took all Tasks with it, nine days ago")
		later(ctx, 2, "gone_since")
		clean(GinkgoTB(), store, options)
		Expect(kept(ctx)).To(HaveExactElements("there", "unclear", "young"), "one that fails holds up no other")
		Expect(coded).To(HaveExactElements("uid-of-gone"))
	})

	It("histories for which there is no time are deleted the next time, whatever the first ones take", func(ctx SpecContext) {
		clean(GinkgoTB(), store, options)
		later(ctx, 11, "gone_since")
		deleted, done := make(chan string, 9), make(chan error, 1)
		options.DeleteCode = func(_ context.Context, task history.Task, _ []string) error {
			deleted <- task.Name
			return nil
		}
		options.Every, options.ClaimTime = time.Nanosecond, time.Nanosecond
		running, stop := context.WithCancel(ctx)
		go func() { done <- store.RunMaintenance(running, options) }()
		young := begin(GinkgoTB(), store, taskNamed("young"), 2)
		Eventually(func() chan string {
			young.append(user("it wakes the maintenance"))
			return deleted
		}).WithTimeout(30*time.Second).WithPolling(time.Second).Should(Receive(Equal("gone")), "the first one that is looked at fails each time")
		stop()
		Expect(<-done).To(MatchError(context.Canceled))
	})

	It("the time begins anew when one is there again", func(ctx SpecContext) {
		clean(GinkgoTB(), store, options)
		later(ctx, 11, "gone_since")
		live = append(live, "uid-of-gone")
		clean(GinkgoTB(), store, options)
		live = live[:1]
		clean(GinkgoTB(), store, options)
		Expect(kept(ctx)).To(ContainElement("gone"))
	})

	It("a history that was adopted is not gone", func(ctx SpecContext) {
		clean(GinkgoTB(), store, options)
		later(ctx, 11, "gone_since")
		Expect(store.Adopt(ctx, next, gone.UID)).To(Succeed())
		later(ctx, 11, "updated_at")
		clean(GinkgoTB(), store, options)
		Expect(kept(ctx)).To(ContainElement("gone"))
	})

	It("a history whose former Task is there again, in an older copy of the cluster, is not gone", func(ctx SpecContext) {
		Expect(store.Adopt(ctx, next, gone.UID)).To(Succeed())
		clean(GinkgoTB(), store, options)
		later(ctx, 11, "gone_since")
		later(ctx, 11, "updated_at")
		back = gone.UID
		live = append(live, back)
		clean(GinkgoTB(), store, options)
		Expect(coded).To(BeEmpty())
		back, live = "", live[:1]
		clean(GinkgoTB(), store, options)
		Expect(kept(ctx)).To(ContainElement("gone"), "the time begins anew")
	})

	It("a history whose former Task comes back just before it is deleted is kept", func(ctx SpecContext) {
		Expect(store.Adopt(ctx, next, gone.UID)).To(Succeed())
		clean(GinkgoTB(), store, options)
		later(ctx, 11, "gone_since")
		later(ctx, 11, "updated_at")
		back = gone.UID
		clean(GinkgoTB(), store, options)
		Expect(coded).To(BeEmpty())
		Expect(kept(ctx)).To(ContainElement("gone"))
	})

	It("a history is kept while a Task of its name continues one that an older copy of the database does not know", func(ctx SpecContext) {
		clean(GinkgoTB(), store, options)
		later(ctx, 11, "gone_since")
		continued = "uid-of-one-between"
		clean(GinkgoTB(), store, options)
		Expect(coded).To(BeEmpty())
		continued = "uid-of-young" // it is known, and has nothing to do with the others
		clean(GinkgoTB(), store, options)
		Expect(coded).To(HaveExactElements(gone.UID))
	})

	It("none is deleted while nobody knows which Tasks there are", func(ctx SpecContext) {
		clean(GinkgoTB(), store, options)
		later(ctx, 11, "gone_since")
		options.LiveTasks = func(context.Context) ([]string, error) { return nil, errors.New("the API server is down") }
		Expect(store.Clean(ctx, options)).NotTo(Succeed())
		Expect(kept(ctx)).To(HaveLen(4))
	})

	// A history that has lost its code must not be adopted: the code is deleted before the rows.
	Context("and may be adopted", func() {
		BeforeEach(func(ctx SpecContext) {
			clean(GinkgoTB(), store, options)
			later(ctx, 11, "gone_since")
		})

		It("one that a Task waits to adopt is kept", func(ctx SpecContext) {
			options.Awaited = func(_ context.Context, task history.Task) (bool, error) { return task.UID == gone.UID, nil }
			clean(GinkgoTB(), store, options)
			Expect(coded).To(BeEmpty())
			Expect(store.Adopt(ctx, next, gone.UID)).To(Succeed())
		})

		It("a Task that is made while the code is deleted does not adopt it", func(ctx SpecContext) {
			deleteCode := options.DeleteCode
			options.DeleteCode = func(ctx context.Context, task history.Task, formers []string) error {
				Expect(store.Adoption(ctx, next)).To(BeZero())
				Expect(store.Adopt(ctx, next, gone.UID)).To(MatchError(history.ErrNotFound))
				return deleteCode(ctx, task, formers)
			}
			clean(GinkgoTB(), store, options)
			Expect(coded).To(HaveExactElements(gone.UID))
			Expect(kept(ctx)).NotTo(ContainElement("gone"))
		})

		It("the code is kept if a Task adopts it just before", func(ctx SpecContext) {
			options.Awaited = func(ctx context.Context, _ history.Task) (bool, error) {
				return false, store.Adopt(ctx, next, gone.UID)
			}
			clean(GinkgoTB(), store, options)
			Expect(coded).To(BeEmpty())
			Expect(store.Adoption(ctx, next)).To(HaveField("Done", true))
			Expect(store.ClaimDeletion(ctx, gone.UID)).Error().To(MatchError(history.ErrNotFound), "deleted by somebody who read of it before")
		})

		It("a deletion that was interrupted is finished, with the code of former tasks", func(ctx SpecContext) {
			Expect(store.Adopt(ctx, next, gone.UID)).To(Succeed())
			for range 2 { // somebody asks for it, and asks again
				Expect(store.ClaimDeletion(ctx, next.UID)).To(HaveExactElements(gone.UID))
			}
			options.MessageRetention = 0
			options.Awaited = nil
			deleteCode := options.DeleteCode
			options.DeleteCode = func(context.Context, history.Task, []string) error { return errors.New("the gitstore is down") }
			clean(GinkgoTB(), store, options)
			Expect(kept(ctx)).To(ContainElement("gone"))
			Expect(store.Adoption(ctx, history.Task{Namespace: "team", Name: "gone", UID: "uid-of-third"})).To(BeZero())
			options.DeleteCode = deleteCode
			clean(GinkgoTB(), store, options)
			Expect(coded).To(HaveExactElements(next.UID, gone.UID))
			Expect(kept(ctx)).NotTo(ContainElement("gone"))
		})

		It("one whose Task is there again is given back", func(ctx SpecContext) {
			exists, asked := options.TaskExists, 0
			options.TaskExists = func(ctx context.Context, task history.Task, formers []string) (bool, string, error) {
				if asked++; asked > 2 { // it is claimed, and the API server is down when its code is to be deleted
					return false, "", errors.New("nobody knows")
				}
				return exists(ctx, task, formers)
			}
			clean(GinkgoTB(), store, options)
			Expect(store.Adoption(ctx, next)).To(BeZero())
			options.TaskExists = func(context.Context, history.Task, []string) (bool, string, error) { return true, "", nil }
			clean(GinkgoTB(), store, options)
			Expect(coded).To(BeEmpty())
			Expect(store.Adoption(ctx, next)).To(HaveField("Former", gone.UID))
		})

		It("one whose Task is there again after its code was deleted is deleted", func(ctx SpecContext) {
			deleteCode := options.DeleteCode
			options.DeleteCode = func(ctx context.Context, task history.Task, formers []string) error {
				return errors.Join(deleteCode(ctx, task, formers), errors.New("its objects are in use"))
			}
			clean(GinkgoTB(), store, options)
			options.DeleteCode = deleteCode
			options.TaskExists = func(context.Context, history.Task, []string) (bool, string, error) { return true, "", nil }
			clean(GinkgoTB(), store, options)
			Expect(coded).To(HaveExactElements(gone.UID, gone.UID))
			Expect(kept(ctx)).NotTo(ContainElement("gone"))
			Expect(store.Begin(ctx, gone, 2, nil, history.BeginOptions{})).Error().To(MatchError(history.ErrFenced))
		})
	})
})
