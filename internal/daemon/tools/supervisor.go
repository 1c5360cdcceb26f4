package tools

import (
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/toolcall"
)

// supervisors lists the tools that only a supervisor has. Like those in own, the descriptions are for
// models; they also say what the answer contains, and what phases the contract has, if they are known.
func supervisors(phases []string) []tool {
	return append(watching(),
		steer(mcp.Tool{
			Name:  string(v1alpha1.ToolTaskCreate),
			Title: "Make a task",
			Description: "Makes a task of yours: another agent that works in its own copy of the repository while you go on. " +
				"Call it for work that you can describe in a prompt and judge by its result. " +
				"It returns at once; task_wait waits for the task. The answer says whether the task starts, or what it waits for. " +
				"The same name with the same arguments makes no second task, and with others is refused: choose another name.",
			Annotations: named(),
		}, func(in *toolcall.CreateInput) (string, *string) { return in.Name, nil }),
		steer(mcp.Tool{
			Name:  string(v1alpha1.ToolTaskResume),
			Title: "Go on with a task",
			Description: "Goes on with a task of yours that has stopped: it keeps its files and its conversation, and its agent reads your prompt next. " +
				"Call it to have a completed task improved, to answer a question with which it ended, or to try again what has failed. " +
				"The answer says that it goes on; task_wait waits until it stops again. It is refused for a task that runs.",
			Annotations: changes(),
		}, func(in *toolcall.ResumeInput) (string, *string) { return in.Task, &in.CallID }),
		steer(mcp.Tool{
			Name:  string(v1alpha1.ToolTaskRewind),
			Title: "Take a task back",
			Description: "Takes a task of yours back to one of its checkpoints, with its files and its conversation, and goes on from there, with your prompt if you give one. " +
				"Call it when a task has gone the wrong way and what it wrote or said would mislead it further; otherwise task_resume is enough. " +
				"If it runs, it is stopped first. What it had is kept in a checkpoint of its own, so that this can be undone. " +
				"task_list and task_history name the checkpoints. The answer says that the rewind is requested; task_wait says how it went.",
			Annotations: changes(),
		}, func(in *toolcall.RewindInput) (string, *string) { return in.Task, &in.CallID }),
		steer(mcp.Tool{
			Name:  string(v1alpha1.ToolTaskFork),
			Title: "Try several ways",
			Description: "Makes new tasks of yours that all begin where a task of yours was at a checkpoint, with its files and its conversation, each with its own prompt. " +
				"Call it to try several ways at once from the same state, and go on with the best; the forked task itself is left as it is. " +
				"It forks only tasks that your own tools have made: to go on with the files of another one, name it in start_from of task_create. " +
				"The answer names the new tasks, for which task_wait waits. The same name with the same arguments makes nothing twice.",
			Annotations: named(),
		}, func(in *toolcall.ForkInput) (string, *string) { return in.Task, nil }),
		steer(mcp.Tool{
			Name:  string(v1alpha1.ToolTaskStop),
			Title: "Stop a task",
			Description: "Stops a task of yours that is not to go on, or not now. Its files and its conversation are kept in a last checkpoint, and task_resume goes on with it. " +
				"Call it for one that wastes its time or is not needed any more. The answer says that it is being stopped.",
			Annotations: changes(),
		}, func(in *toolcall.StopInput) (string, *string) { return in.Task, &in.CallID }),
		steer(mcp.Tool{
			Name:  string(v1alpha1.ToolPhaseSet),
			Title: "Go to another phase",
			Description: "Moves the contract, which is the work of you and your tasks, to another of its phases" + among(phases) + ". " +
				"Call it when what a phase is for has been done; tasks that you make from then on belong to the new phase. " +
				"A checkpoint of you is taken first, from which the phase can begin again; if it cannot be, nothing changes, and the answer says why. " +
				"The answer names the phase that it is in then.",
			Annotations: changes(),
		}, func(in *toolcall.PhaseInput) (string, *string) { return in.Phase, &in.CallID }),
		steer(mcp.Tool{
			Name:  string(v1alpha1.ToolPublish),
			Title: "Publish work",
			Description: "Pushes work to the branch that is set for your task: your own at your latest checkpoint, or that of a task of yours. " +
				"Call it when the work is done and you have checked it; take a checkpoint before if it is your own. You can choose neither the repository nor the branch. " +
				"The answer says what is pushed to which branch, or why nothing is.",
			Annotations: &mcp.ToolAnnotations{DestructiveHint: no()}, // others see it
		}, func(in *toolcall.PublishInput) (string, *string) { return in.Task, &in.CallID }),
	)
}

// among names the phases that there are; "" if a manager of an older version has not told them.
func among(phases []string) string {
	if len(phases) == 0 {
		return ""
	}
	return ", which are, in this order, " + strings.Join(phases, ", ")
}

// watching lists those that change nothing.
func watching() []tool {
	return []tool{
		steer(mcp.Tool{
			Name:  string(v1alpha1.ToolTaskList),
			Title: "List tasks",
			Description: "Lists your tasks as they are now: name, state and what it means, phase, latest checkpoint, how much they have changed and used, and for whom they wait. " +
				"Call it for an overview, such as after your context was compacted. To wait for them, call task_wait instead.",
			Annotations: reads(),
		}, func(*toolcall.ListInput) (string, *string) { return "", nil }),
		steer(mcp.Tool{
			Name:  string(v1alpha1.ToolTaskWait),
			Title: "Wait for tasks",
			Description: "Waits until tasks of yours have stopped: completed, failed, or waiting for somebody. " +
				"It waits for less than a minute: if the answer says that some are unfinished, call it again, as often as it takes; that costs less than looking at them meanwhile. " +
				"The answer says how each one has ended, or what it waits for.",
			Annotations: reads(),
		}, func(in *toolcall.WaitInput) (string, *string) { return strings.Join(in.Tasks, ", "), nil }),
		steer(mcp.Tool{
			Name:  string(v1alpha1.ToolTaskHistory),
			Title: "Read a task's conversation",
			Description: "Reads the conversation of a task of yours: the newest messages, or those with the words of query, with its tool calls and their results. " +
				"Call it to see what it did and why, before you resume it, take it back or rely on it. What a rewind has taken back is not in it. " +
				"The answer has each message's position and time, and long ones cut.",
			Annotations: reads(),
		}, func(in *toolcall.HistoryInput) (string, *string) { return in.Task, nil }),
		steer(mcp.Tool{
			Name:  string(v1alpha1.ToolTaskDiff),
			Title: "Show what a task has changed",
			Description: "Shows as a patch what a task of yours has changed, from what it started with to its latest checkpoint or, with from and to, between two of its checkpoints. " +
				"Call it to judge its work. A long patch is cut: name a path to see more of it.",
			Annotations: reads(),
		}, func(in *toolcall.DiffInput) (string, *string) { return in.Task, nil }),
	}
}
