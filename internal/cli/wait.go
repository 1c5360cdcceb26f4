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
// to show), or has failed with an error that ends the wait.
type verdict struct {
	done  bool
	state string
	err   error
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
	state := ""
	_, err := watchtools.UntilWithSync(ctx, s.watcher(list, name), object, nil, func(event watch.Event) (bool, error) {
		if event.Type == watch.Deleted {
			return false, fmt.Errorf("the %s %s was deleted while waiting", kind, name)
		}
		seen, ok := event.Object.(T)
		if !ok {
			return false, fmt.Errorf("the watch of %s %s returned a %T", kind, name, event.Object)
		}
		last = seen
		v := judge(seen)
		state = v.state
		progress.update(v.state)
		return v.done, v.err
	})
	if wait.Interrupted(err) || errors.Is(err, watchtools.ErrWatchClosed) {
		if parent := context.Cause(ctx); errors.Is(parent, context.Canceled) {
			return last, errors.New("interrupted; the operation continues in the cluster")
		}
		return last, fmt.Errorf("gave up waiting for %s %s after %s (%s); the operation continues in the cluster: check it with `kubectl describe %ss.clew.dev %s -n %s`, or wait longer with --timeout",
			kind, name, f.timeout, cmp.Or(oneLine(state), "nothing reported yet"), kind, name, s.namespace)
	}
	return last, err
}

// watcher lists and watches only the object with that name.
func (s *session) watcher(list client.ObjectList, name string) *cache.ListWatch {
	options := func(o metav1.ListOptions) *client.ListOptions {
		o.FieldSelector = fields.OneTermEqualSelector("metadata.name", name).String()
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
