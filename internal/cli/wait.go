package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// waitFlags are --wait and --timeout: whether and how long to wait.
type waitFlags struct {
	wait    bool
	timeout time.Duration
}

// add adds the flags to a command. until completes the sentence "Wait until …".
func (f *waitFlags) add(cmd *cobra.Command, until string) {
	cmd.Flags().BoolVar(&f.wait, "wait", true, "Wait until "+until+".")
	f.timeout = 5 * time.Minute
	cmd.Flags().Var((*positiveDuration)(&f.timeout), "timeout", "How long to wait before giving up. The operation itself continues in the cluster.")
}

// positiveDuration is a flag's duration above zero. With a timeout of zero, a command
// would send its request and report failure at once.
type positiveDuration time.Duration

// Set implements pflag.Value.
func (p *positiveDuration) Set(text string) error {
	d, err := time.ParseDuration(text)
	if err != nil {
		return err
	}
	if d <= 0 {
		return errors.New("it must be above zero, such as 90s or 5m; use --wait=false to not wait at all")
	}
	*p = positiveDuration(d)
	return nil
}

// String implements pflag.Value.
func (p *positiveDuration) String() string { return time.Duration(*p).String() }

// Type implements pflag.Value. Help shows it as the name of the value.
func (p *positiveDuration) Type() string { return "duration" }

// verdict says whether the awaited operation is done, is in progress (with a state
// to show), or has failed with an error that ends the wait. doubtful is an operation in
// progress that waits for something that may never come.
type verdict struct {
	done     bool
	state    string
	err      error
	doubtful bool
}

// await watches one object until judge returns a verdict that is done, and returns
// the object in that state. T is a pointer to the object's type.
func await[T client.Object](ctx context.Context, s *session, f waitFlags, kind string, list client.ObjectList, object T, judge func(T) verdict) (T, error) {
	name := object.GetName()
	ctx, cancel := context.WithTimeout(ctx, f.timeout)
	defer cancel()
	progress := newProgress(s.ErrOut)
	defer progress.stop()
	var last T
	var now verdict
	_, err := watchtools.UntilWithSync(ctx, s.watcher(list, name), object, nil, func(event watch.Event) (bool, error) {
		if event.Type == watch.Deleted {
			return false, fmt.Errorf("the %s %s was deleted while waiting", kind, name)
		}
		seen, ok := event.Object.(T)
		if !ok {
			return false, fmt.Errorf("the watch of %s %s returned a %T", kind, name, event.Object)
		}
		last = seen
		now = judge(seen)
		progress.update(now.state)
		return now.done, now.err
	})
	if wait.Interrupted(err) || errors.Is(err, watchtools.ErrWatchClosed) {
		interrupted := errors.Is(context.Cause(ctx), context.Canceled)
		return last, s.givenUp(f, kind, name, now, interrupted)
	}
	return last, err
}

// givenUp is the error for a wait that ends before the operation does.
func (s *session) givenUp(f waitFlags, kind, name string, now verdict, interrupted bool) error {
	object := fmt.Sprintf("%ss.clew.dev %s -n %s", kind, name, s.namespace)
	problem := fmt.Sprintf("gave up waiting for %s %s after %s (%s)", kind, name, f.timeout, cmp.Or(oneLine(now.state), "nothing reported yet"))
	if interrupted {
		problem = "interrupted"
	}
	switch {
	case now.doubtful:
		return fmt.Errorf("%s; the %s %s waits for something that may never come: `kubectl delete %s` removes it", problem, kind, name, object)
	case interrupted:
		return errors.New("interrupted; the operation continues in the cluster")
	}
	return fmt.Errorf("%s; the operation continues in the cluster: check it with `kubectl describe %s`, or wait longer with --timeout", problem, object)
}

// watcher lists and watches only the object with that name, or all objects of the namespace without one.
func (s *session) watcher(list client.ObjectList, name string) *cache.ListWatch {
	options := func(o metav1.ListOptions) *client.ListOptions {
		if name != "" {
			o.FieldSelector = fields.OneTermEqualSelector("metadata.name", name).String()
		}
		return &client.ListOptions{Namespace: s.namespace, Raw: &o}
	}
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			l := list.DeepCopyObject().(client.ObjectList)
			return l, s.client.List(ctx, l, options(o))
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return s.client.Watch(ctx, list.DeepCopyObject().(client.ObjectList), options(o))
		},
	}
}
