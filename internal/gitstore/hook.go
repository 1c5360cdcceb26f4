package gitstore

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/clew-dev/clew/internal/gitstoreapi"
)

// Environment variables by which the handler passes facts to the hook, through git.
const (
	hookProbe       = "CLEW_HOOK_PROBE"
	hookProbeAnswer = "clew-hook"

	hookTaskName = "CLEW_TASK_NAME"
	hookTaskUID  = "CLEW_TASK_UID"
	hookAttempt  = "CLEW_TASK_ATTEMPT"
	hookOwner    = "CLEW_NAMESPACE_UID"
	hookFences   = "CLEW_FENCES"
	hookSources  = "CLEW_TASK_SOURCES"
	hookObjects  = "CLEW_PACK_OBJECTS"
	hookGit      = "CLEW_GIT"
	hookConfig   = "CLEW_GIT_CONFIG"
	hookMemory   = "CLEW_GIT_MEMORY"

	// fenceDescriptor is the file descriptor by which git and the hook inherit the
	// lock file of the task's fence; useDescriptor is that of the repository's lock.
	fenceDescriptor = 3
	useDescriptor   = 4
)

// hookTimeout is how long the hook waits for the fence's lock, which others hold only
// while they write a small file.
const hookTimeout = 10 * time.Second

// PreReceive is git's pre-receive hook: it reads the ref updates from stdin,
// one "<old> <new> <ref>" per line, and returns an error if any of them is not
// allowed, which refuses the whole push. Git runs it when all objects have
// arrived and been checked, before they become part of the repository.
//
// It takes a shared lock on the task's fence, through a file that git inherited
// from the handler. The lock outlives the hook: it is held until git has updated
// the refs and the last process of the push has exited. A newer attempt takes
// the same lock exclusively to record itself, so that no push it has replaced
// can land after it.
func PreReceive(stdin io.Reader, stdout io.Writer, getenv func(string) string) error {
	if getenv(hookProbe) != "" {
		_, err := fmt.Fprintln(stdout, hookProbeAnswer)
		return err
	}
	task, err := hookTask(getenv)
	if err != nil {
		return gitstoreapi.New(gitstoreapi.Unavailable, "the hook was not run by the gitstore: %v", err)
	}
	commands, err := hookCommands(stdin)
	if err != nil {
		return gitstoreapi.New(gitstoreapi.BadRequest, "the ref updates cannot be read: %v", err)
	}
	if refused := checkCommands(task, commands); refused != nil {
		return refused
	}
	if refused := hookConnectivity(context.Background(), task, commands, getenv); refused != nil {
		return refused
	}
	ctx, cancel := context.WithTimeout(context.Background(), hookTimeout)
	defer cancel()
	// Not closed: closing would have no effect, as git holds the same open file.
	if err := lock(ctx, os.NewFile(fenceDescriptor, "fence"), syscall.LOCK_SH); err != nil {
		return gitstoreapi.New(gitstoreapi.Unavailable, "the fence of the task could not be locked: %v; try again", err)
	}
	newest, err := fences{folder: getenv(hookFences)}.newest(task.UID)
	if errors.Is(err, errTaskDeleted) {
		return taskDeleted(task)
	}
	if errors.Is(err, errMadeRoom) {
		return gitstoreapi.New(gitstoreapi.Unavailable, "%v", err)
	}
	if err != nil {
		return gitstoreapi.New(gitstoreapi.Unavailable, "the fence of the task could not be read: %v", err)
	}
	if refused := stale(task, newest); refused != nil {
		return refused
	}
	return nil
}

// hookConnectivity refuses a push that refers to objects which it does not contain and its task
// does not see. Git has checked that they exist, which is not enough: they may be another
// task's.
func hookConnectivity(ctx context.Context, task Task, commands []Command, getenv func(string) string) *gitstoreapi.Refusal {
	path, err := os.Getwd() // git runs the hook in the repository
	memory, memoryErr := strconv.ParseInt(getenv(hookMemory), 10, 64)
	objects, objectsErr := strconv.Atoi(getenv(hookObjects))
	if err := errors.Join(err, memoryErr, objectsErr); err != nil {
		return gitstoreapi.New(gitstoreapi.Unavailable, "the hook was not run by the gitstore: %v", err)
	}
	var tips []string
	for _, command := range commands {
		tips = append(tips, command.New)
	}
	g := git{binary: getenv(hookGit), config: getenv(hookConfig), memory: memory}
	owned := func() (belongings, error) { return fences{folder: getenv(hookFences)}.mayBuildOn(task.NamespaceUID) }
	err = checkConnectivity(ctx, g, path, getenv("GIT_QUARANTINE_PATH"), viewOf(task), owned, tips, objects)
	switch {
	case errors.Is(err, errMissingObjects), errors.Is(err, errThinPack):
		return gitstoreapi.New(gitstoreapi.ObjectsRefused, "%v", err)
	case err != nil && damaged.MatchString(err.Error()):
		return gitstoreapi.New(gitstoreapi.Unavailable, "the push builds on "+gitstoreapi.DamagedObjects+"; try again once they are healed")
	case err != nil:
		return gitstoreapi.New(gitstoreapi.Unavailable, "the objects of the push could not be checked: %v; try again", err)
	}
	return nil
}

// hookEnvironment returns the environment that tells the hook whose push it checks.
func hookEnvironment(task Task, fences fences, g git) []string {
	return []string{
		hookSources + "=" + strings.Join(task.Sources, " "),
		hookGit + "=" + g.binary,
		hookConfig + "=" + g.config,
		hookMemory + "=" + strconv.FormatInt(g.memory, 10),
		hookOwner + "=" + task.NamespaceUID,
		hookTaskName + "=" + task.Name,
		hookTaskUID + "=" + task.UID,
		hookAttempt + "=" + strconv.FormatInt(task.Attempt, 10),
		hookFences + "=" + fences.folder,
	}
}

// hookTask reads the pushing task from the hook's environment.
func hookTask(getenv func(string) string) (Task, error) {
	attempt, err := strconv.ParseInt(getenv(hookAttempt), 10, 64)
	task := Task{NamespaceUID: getenv(hookOwner), Name: getenv(hookTaskName), UID: getenv(hookTaskUID), Attempt: attempt, Sources: strings.Fields(getenv(hookSources))}
	if err != nil || task.Name == "" || task.UID == "" || getenv(hookFences) == "" {
		return Task{}, errors.New("the environment does not name the task")
	}
	return task, nil
}

// hookCommands reads the ref updates that git passes to the hook.
func hookCommands(stdin io.Reader) ([]Command, error) {
	var commands []Command
	lines := bufio.NewScanner(stdin)
	for lines.Scan() {
		fields := strings.SplitN(lines.Text(), " ", 3)
		if len(fields) != 3 {
			return nil, fmt.Errorf("%q is not a ref update", lines.Text())
		}
		commands = append(commands, Command{Old: fields[0], New: fields[1], Ref: fields[2]})
	}
	return commands, lines.Err()
}
