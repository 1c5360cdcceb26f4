package podidentity

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/singleflight"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"

	historyv1alpha1 "github.com/clew-dev/clew/api/history/v1alpha1"
	clewv1alpha1 "github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
)

const (
	extraPodName = "authentication.kubernetes.io/pod-name"
	extraPodUID  = "authentication.kubernetes.io/pod-uid"

	serviceAccountPrefix = "system:serviceaccount:"

	// maxTokenBytes bounds the length of tokens; real ones are about 1 KiB.
	maxTokenBytes = 16 << 10
	// askTimeout bounds the requests about one token, whoever waits for the answer.
	askTimeout = 10 * time.Second
)

// Identity is the attempt of a task that a token belongs to, as its pod claims and the API
// server confirms.
type Identity struct {
	// Namespace of the pod and its task.
	Namespace string
	// TaskName and TaskUID of the Task that controls the pod.
	TaskName string
	TaskUID  string
	// Attempt is the number of the task's pod, from 1. Stores use it as the fence. It is 0
	// for a pod that publishes.
	Attempt int64
	// Publishes is set for a pod that publishes the task's work: it reads what the task has
	// in the gitstore, and writes nothing.
	Publishes bool
	// Checkpoint and CheckpointUID are of the Checkpoint that controls a pod which publishes one
	// of its branches; empty for all other pods.
	Checkpoint, CheckpointUID string
	// PodName and PodUID of the pod that the token is bound to.
	PodName string
	PodUID  string
}

// Reader is a caller who may read the checkpoints of one namespace.
type Reader struct {
	// Username as the API server knows it.
	Username string
	// Namespace is the one whose checkpoints the caller may read.
	Namespace string
	// Conversations is set if the caller may read the conversations of its tasks as well.
	Conversations bool
}

// ServiceAccountNamespace returns the namespace of the reader's service account, which
// need not be the one it reads; empty if the reader is not a service account.
func (r Reader) ServiceAccountNamespace() string {
	namespace, ok := serviceAccountNamespace(r.Username)
	if !ok {
		return ""
	}
	return namespace
}

// TaskChecker confirms an identity. See LiveTasks.
type TaskChecker interface {
	// CheckTask checks that the Task exists with this UID, and that the manager created
	// the pod for it. It returns nil, or an error that wraps one of this package's kinds.
	CheckTask(ctx context.Context, identity Identity) error
}

// Options of a Verifier; the zero value is usable.
type Options struct {
	// Audiences lists audiences; a token must have one of them. Messages tell callers
	// to use the first. Only daemonapi.FormerAudience if empty.
	Audiences []string
	// Tasks confirms each identity, after all other checks; nil for no confirmation.
	Tasks TaskChecker
	// CacheTTL is how long a success is cached; 30 s if zero, and at most.
	CacheTTL time.Duration
	// CacheSize bounds how many successes are cached; 4096 if zero.
	CacheSize int
	// Clock replaces the real clock in tests.
	Clock clock.PassiveClock
}

// Verifier checks tokens against the Kubernetes API. It is safe for concurrent
// use.
type Verifier struct {
	client    kubernetes.Interface
	names     Namespaces
	audiences []string
	tasks     TaskChecker
	inspector inspector
	limits    *limits
	answers   *answers
	flight    singleflight.Group
}

// New returns a Verifier. The client's account must be allowed to create
// tokenreviews and subjectaccessreviews, to get pods, and to read the API server's signing
// keys, as every service account may by default. The client should not be shared: its rate
// limits are part of what keeps callers from delaying each other.
func New(client kubernetes.Interface, names Namespaces, options Options) *Verifier {
	if len(options.Audiences) == 0 {
		options.Audiences = []string{daemonapi.FormerAudience}
	}
	if options.CacheTTL <= 0 || options.CacheTTL > maxCacheTTL {
		options.CacheTTL = maxCacheTTL
	}
	if options.CacheSize <= 0 {
		options.CacheSize = defaultCacheSize
	}
	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}
	return &Verifier{
		client:    client,
		names:     names,
		audiences: options.Audiences,
		tasks:     options.Tasks,
		inspector: inspector{audiences: options.Audiences, keys: &keys{client: client.Discovery().RESTClient(), clock: options.Clock}, clock: options.Clock},
		limits:    newLimits(options.Clock),
		answers:   newAnswers(options.CacheTTL, options.CacheSize, options.Clock),
	}
}

// Verify returns the task whose pod the token belongs to. Its errors wrap
// ErrUnauthenticated, ErrNotTask, ErrForbidden or ErrUnavailable.
func (v *Verifier) Verify(ctx context.Context, token string) (Identity, error) {
	found, err := v.answer(ctx, token, "task", func(ctx context.Context, who holder) (any, place, error) {
		identity, err := v.identify(ctx, who.user)
		return identity, who.of, err
	})
	identity, _ := found.(Identity)
	return identity, err
}

// VerifyReader accepts any token of the audience whose holder may get
// checkpoints.clew.dev in the namespace. It is meant for people and tools that
// read code with plain git. Its errors wrap ErrUnauthenticated, ErrForbidden
// or ErrUnavailable.
//
// The caller chooses the namespace, so one token can cause any number of access reviews:
// they are rate-limited per namespace of the holders.
func (v *Verifier) VerifyReader(ctx context.Context, token, namespace string) (Reader, error) {
	found, err := v.answer(ctx, token, "reader/"+namespace, func(ctx context.Context, who holder) (any, place, error) {
		if err := v.limits.waitForRights(ctx, who.user.Username); err != nil {
			return nil, place{}, err
		}
		about, err := v.placeOf(ctx, namespace)
		if err != nil {
			return nil, place{}, err
		}
		if err := v.authorizeReader(ctx, who.user, namespace); err != nil {
			return nil, place{}, err
		}
		conversations, err := v.allowed(ctx, who.user, authorizationv1.ResourceAttributes{Namespace: namespace, Verb: "get",
			Group: historyv1alpha1.Group, Version: historyv1alpha1.Version, Resource: "tasks", Subresource: "conversation"})
		return Reader{Username: who.user.Username, Namespace: namespace, Conversations: conversations}, about, err
	})
	reader, _ := found.(Reader)
	return reader, err
}

// VerifyServiceAccount accepts a token of the audience that belongs to one
// ServiceAccount, such as the server's own. It caches nothing. Its errors
// wrap ErrUnauthenticated, ErrForbidden or ErrUnavailable.
func (v *Verifier) VerifyServiceAccount(ctx context.Context, token, namespace, name string) error {
	wanted := serviceAccountPrefix + namespace + ":" + name
	isOther := func(username string) error {
		if namespace == "" || name == "" || username != wanted {
			return fail(ErrForbidden, "%q may not do this: only the service account %s/%s may", username, namespace, name)
		}
		return nil
	}
	if err := checkForm(token); err != nil {
		return err
	}
	// The API server is not asked about a token that belongs to somebody else.
	if claimed, err := v.inspector.inspect(ctx, token); err == nil && claimed.Subject != "" {
		if err := isOther(claimed.Subject); err != nil {
			return err
		}
	}
	who, err := v.authenticate(ctx, token)
	if err != nil {
		return err
	}
	return isOther(who.user.Username)
}

// answer returns what find establishes about the holder of a token, and which namespace that is
// about. Answers are kept, and concurrent calls with the same question share one answer.
func (v *Verifier) answer(ctx context.Context, token, question string, find func(context.Context, holder) (any, place, error)) (any, error) {
	key := digestOf(token, question)
	if value, ok, err := v.known(ctx, key); ok || err != nil {
		return value, err
	}
	if refusal, ok := v.answers.refusals.Get(key); ok {
		return nil, refusal.(error)
	}
	if err := checkForm(token); err != nil {
		return nil, err
	}
	waiting := v.flight.DoChan(string(key[:]), func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), askTimeout)
		defer cancel()
		who, err := v.holderOf(ctx, token)
		if err != nil {
			return nil, v.refuse(key, err)
		}
		value, about, err := find(ctx, who)
		if err != nil {
			return nil, v.refuse(key, err)
		}
		// Keep the answer no longer than the holder, so that a withdrawn token or
		// permission is noticed within one TTL.
		v.keep(key, value, about, who.until)
		return value, nil
	})
	select {
	case got := <-waiting:
		return got.Val, got.Err
	case <-ctx.Done():
		return nil, fail(ErrUnavailable, "the token could not be checked in time: %v; try again", ctx.Err())
	}
}

// holder is the holder of a token, the namespace of its service account, and until when that is
// kept.
type holder struct {
	user  authenticationv1.UserInfo
	of    place
	until time.Time
}

// holderOf authenticates a token, once for all questions about it while the answer is kept.
func (v *Verifier) holderOf(ctx context.Context, token string) (holder, error) {
	key := digestOf(token, "holder")
	if known, ok, err := v.known(ctx, key); ok || err != nil {
		who, _ := known.(holder)
		return who, err
	}
	found, err, _ := v.flight.Do(string(key[:]), func() (any, error) {
		until := v.answers.clock.Now().Add(v.answers.ttl)
		who, err := v.authenticate(ctx, token)
		if err != nil {
			return holder{}, err
		}
		who.until = until
		v.keep(key, who, who.of, until)
		return who, nil
	})
	who, _ := found.(holder)
	return who, err
}

// refuse caches a refusal that cost a request to the API server. Local refusals are
// cheap and are not cached.
func (v *Verifier) refuse(key digest, err error) error {
	var local *localRefusal
	if !errors.Is(err, ErrUnavailable) && !errors.As(err, &local) {
		v.answers.refusals.Add(key, err, refusalTTL)
	}
	return err
}

// localRefusal is a refusal by the local check, without a request to the API server.
type localRefusal struct{ error }

// Unwrap returns the refusal.
func (l *localRefusal) Unwrap() error { return l.error }

// authenticate returns the holder of a token. Only tokens that the API server signed for
// our audiences get as far as a TokenReview, which establishes whether they are still
// valid. When signatures cannot be checked, strangers share a narrow limit.
func (v *Verifier) authenticate(ctx context.Context, token string) (holder, error) {
	if err := checkForm(token); err != nil {
		return holder{}, err
	}
	claimed, err := v.inspector.inspect(ctx, token)
	var old *expired
	if err != nil && !errors.Is(err, errNoKeys) && !errors.As(err, &old) {
		return holder{}, &localRefusal{err}
	}
	itself := digestOf(token, "")
	if err := v.limits.wait(ctx, itself, claimed, !errors.Is(err, errNoKeys)); err != nil {
		return holder{}, err
	}
	if old != nil {
		return holder{}, v.refusalFor(ctx, claimed, err)
	}
	of, err := v.placeOf(ctx, claimed.Kubernetes.Namespace)
	if err != nil {
		return holder{}, err
	}
	user, err := v.review(ctx, token, claimed)
	if err != nil {
		return holder{}, err
	}
	v.limits.accept(itself)
	if namespace, _ := serviceAccountNamespace(user.Username); namespace != of.name {
		of = place{name: namespace}
	}
	return holder{user: user, of: of}, nil
}

// review has the API server authenticate the token for our audiences.
func (v *Verifier) review(ctx context.Context, token string, claimed claims) (authenticationv1.UserInfo, error) {
	var none authenticationv1.UserInfo
	review, err := v.client.AuthenticationV1().TokenReviews().Create(ctx, &authenticationv1.TokenReview{
		Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: v.audiences},
	}, metav1.CreateOptions{})
	if err != nil {
		return none, fail(ErrUnavailable, "the token could not be checked with the Kubernetes API (TokenReview): %v; try again", err)
	}
	if !review.Status.Authenticated {
		return none, v.refusalFor(ctx, claimed, fail(ErrUnauthenticated, "the API server did not accept the token; it may have expired or be meant for an audience other than %q; use a fresh one", v.audiences[0]))
	}
	// An authenticator that does not support audiences returns none: its tokens are meant
	// for the API server, and must not be accepted here.
	if !slices.ContainsFunc(review.Status.Audiences, func(audience string) bool { return slices.Contains(v.audiences, audience) }) {
		return none, fail(ErrUnauthenticated, "the token is not meant for the audience %q; ask for one that is, for example with kubectl create token --audience %s", v.audiences[0], v.audiences[0])
	}
	return review.Status.User, nil
}

// checkForm refuses what cannot be a token.
func checkForm(token string) error {
	if token == "" {
		return fail(ErrUnauthenticated, "no token was given; send one as bearer token or as password")
	}
	if len(token) > maxTokenBytes {
		return fail(ErrUnauthenticated, "the token is longer than %d bytes, so it is not a service account token", maxTokenBytes)
	}
	if strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return fail(ErrUnauthenticated, "the token contains characters that do not occur in tokens")
	}
	return nil
}

// identify reads the pod that the user's token is bound to, and the task from it.
func (v *Verifier) identify(ctx context.Context, user authenticationv1.UserInfo) (Identity, error) {
	namespace, ok := serviceAccountNamespace(user.Username)
	podName, podUID := single(user.Extra[extraPodName]), single(user.Extra[extraPodUID])
	if !ok || podName == "" || podUID == "" {
		return Identity{}, fail(ErrNotTask, "the token of %q is not bound to a pod, so it does not belong to a task", user.Username)
	}
	pod, err := v.client.CoreV1().Pods(namespace).Get(ctx, podName, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return Identity{}, podGone(namespace, podName)
	case err != nil:
		return Identity{}, fail(ErrUnavailable, "the pod %s/%s that the token is bound to could not be read: %v; try again", namespace, podName, err)
	case string(pod.UID) != podUID:
		return Identity{}, podGone(namespace, podName)
	}
	identity, err := identityOf(pod)
	if err != nil {
		return Identity{}, err
	}
	if v.tasks == nil {
		return identity, nil
	}
	if err := v.tasks.CheckTask(ctx, identity); err != nil {
		return Identity{}, asFailure(err)
	}
	return identity, nil
}

// asFailure makes an error of a TaskChecker an ErrUnavailable if it has no kind.
func asFailure(err error) error {
	for _, kind := range []error{ErrUnauthenticated, ErrForbidden, ErrUnavailable} {
		if errors.Is(err, kind) {
			return err
		}
	}
	return fail(ErrUnavailable, "the task could not be checked: %v; try again", err)
}

// identityOf reads the task and attempt that a pod claims to be of.
func identityOf(pod *corev1.Pod) (Identity, error) {
	name := pod.Labels[clewv1alpha1.LabelTask]
	uid := pod.Labels[clewv1alpha1.LabelTaskUID]
	if name == "" && uid == "" {
		return Identity{}, fail(ErrNotTask, "the pod %s/%s is not the pod of a task: it has no label %s", pod.Namespace, pod.Name, clewv1alpha1.LabelTask)
	}
	publishes := pod.Labels[clewv1alpha1.LabelPublication] != ""
	attempt, err := strconv.ParseInt(pod.Labels[clewv1alpha1.LabelAttempt], 10, 64)
	if publishes {
		attempt = 0
	} else if err != nil || attempt < 1 {
		return Identity{}, fail(ErrForbidden, "the pod %s/%s was not created by Clew: its label %s is not a positive number", pod.Namespace, pod.Name, clewv1alpha1.LabelAttempt)
	}
	owner := metav1.GetControllerOf(pod)
	ours := owner != nil && owner.APIVersion == clewv1alpha1.GroupVersion.String() && uid != ""
	branch := ours && publishes && owner.Kind == "Checkpoint"
	if !branch && (!ours || owner.Kind != "Task" || owner.Name != name || string(owner.UID) != uid) {
		return Identity{}, fail(ErrForbidden, "the pod %s/%s was not created by Clew: it is not controlled by the Task %q with UID %q that its labels name", pod.Namespace, pod.Name, name, uid)
	}
	identity := Identity{
		Namespace: pod.Namespace,
		TaskName:  name,
		TaskUID:   uid,
		Attempt:   attempt,
		Publishes: publishes,
		PodName:   pod.Name,
		PodUID:    string(pod.UID),
	}
	if branch {
		identity.Checkpoint, identity.CheckpointUID = owner.Name, string(owner.UID)
	}
	return identity, nil
}

// authorizeReader asks the API server whether the user may get checkpoints in the
// namespace.
func (v *Verifier) authorizeReader(ctx context.Context, user authenticationv1.UserInfo, namespace string) error {
	allowed, err := v.allowed(ctx, user, authorizationv1.ResourceAttributes{Namespace: namespace, Verb: "get",
		Group: clewv1alpha1.GroupVersion.Group, Version: clewv1alpha1.GroupVersion.Version, Resource: "checkpoints"})
	if err == nil && !allowed {
		err = fail(ErrForbidden, "%q may not get checkpoints.clew.dev in the namespace %q; a role that allows it gives read access", user.Username, namespace)
	}
	return err
}

// allowed asks the API server whether the user may do something.
func (v *Verifier) allowed(ctx context.Context, user authenticationv1.UserInfo, what authorizationv1.ResourceAttributes) (bool, error) {
	extra := make(map[string]authorizationv1.ExtraValue, len(user.Extra))
	for key, values := range user.Extra {
		extra[key] = authorizationv1.ExtraValue(values)
	}
	review, err := v.client.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{
			User: user.Username, UID: user.UID, Groups: user.Groups, Extra: extra, ResourceAttributes: &what,
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return false, fail(ErrUnavailable, "the permissions of %q could not be checked with the Kubernetes API (SubjectAccessReview): %v; try again", user.Username, err)
	}
	return review.Status.Allowed && !review.Status.Denied, nil
}

// serviceAccountNamespace returns the namespace in a service account's user name. It
// returns false for any other user name.
func serviceAccountNamespace(username string) (string, bool) {
	rest, ok := strings.CutPrefix(username, serviceAccountPrefix)
	if !ok {
		return "", false
	}
	namespace, name, ok := strings.Cut(rest, ":")
	return namespace, ok && namespace != "" && name != "" && !strings.Contains(name, ":")
}

// single returns the only value of an extra field, "" if there is none or several.
func single(values authenticationv1.ExtraValue) string {
	if len(values) != 1 {
		return ""
	}
	return values[0]
}
