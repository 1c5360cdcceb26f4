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

// waitFlags say whether and how long to wait.
type waitFlags struct {
	wait    bool
	timeout time.Duration
}

func (f *waitFlags) add(cmd *cobra.Command, until string) {
	cmd.Flags().BoolVar(&f.wait, "wait", true, "Wait until "+until+".")
	f.timeout = 5 * time.Minute
	cmd.Flags().Var((*patience)(&f.timeout), "timeout", "How long to wait before giving up. What was asked for goes on all the same.")
}

// patience is a flag's duration above zero. Without any, something would be asked
// for and at once be said to have failed.
type patience time.Duration

// Set implements pflag.Value.
func (p *patience) Set(text string) error {
	d, err := time.ParseDuration(text)
	if err != nil {
		return err
	}
	if d <= 0 {
		return errors.New("it has to be above zero, such as 90s or 5m; --wait=false does not wait at all")
	}
	*p = patience(d)
	return nil
}

// String implements pflag.Value.
func (p *patience) String() string { return time.Duration(*p).String() }

// Type implements pflag.Value: it is what help calls the value.
func (p *patience) Type() string { return "duration" }

// verdict is what a look at an object says: done, not yet (with a state for
// people), or an error that ends the wait.
type verdict struct {
	done  bool
	state string
	err   error
}

// await watches one object until judge says that it is done, and gives the
// object as it then was. T is a pointer to the object's type.
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
			return false, fmt.Errorf("the %s %s was deleted in the meantime", kind, name)
		}
		seen, ok := event.Object.(T)
		if !ok {
			return false, fmt.Errorf("the watch of %s %s brought a %T", kind, name, event.Object)
		}
		last = seen
		v := judge(seen)
		state = v.state
		progress.say(v.state)
		return v.done, v.err
	})
	if wait.Interrupted(err) || errors.Is(err, watchtools.ErrWatchClosed) {
		if parent := context.Cause(ctx); errors.Is(parent, context.Canceled) {
			return last, errors.New("interrupted; what was asked for goes on in the cluster")
		}
		return last, fmt.Errorf("gave up waiting for %s %s after %s (%s); it goes on in the cluster: look with `kubectl describe %ss.clew.dev %s -n %s`, or wait longer with --timeout",
			kind, name, f.timeout, cmp.Or(oneLine(state), "nothing has happened yet"), kind, name, s.namespace)
	}
	return last, err
}

// watcher lists and watches the one object of that name.
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
